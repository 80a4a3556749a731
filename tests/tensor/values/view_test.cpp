#include "reshard/tensor/values/view.h"

#include <numeric>
#if __has_include(<xtensor/xarray.hpp>)
#include <xtensor/xarray.hpp>
#include <xtensor/xbuilder.hpp>
#include <xtensor/xmanipulation.hpp>
#include <xtensor/xstrided_view.hpp>
#else  // xtensor 0.26
#include <xtensor/containers/xarray.hpp>
#include <xtensor/generators/xbuilder.hpp>
#include <xtensor/misc/xmanipulation.hpp>
#include <xtensor/views/xstrided_view.hpp>
#endif

#include "support/catch.h"
#include "support/random.h"

namespace reshard::test {
namespace {

using Elems = xt::xarray<std::uint64_t>;

/// The offset of each of the view's elements, in C order.
std::vector<std::uint64_t> offsets(const View& view) {
  std::vector<std::uint64_t> all;
  for (std::uint64_t i = 0; i < num_elems(view.shape).value(); ++i) {
    Dims index(view.shape.size());
    std::uint64_t rest = i;
    for (std::size_t d = index.size(); d-- > 0; rest /= view.shape[d]) index[d] = rest % view.shape[d];
    all.push_back(view.offset(index));
  }
  return all;
}

std::vector<std::uint64_t> in_c_order(const Elems& elems) {
  return {elems.begin(), elems.end()};
}

/// Whether equal steps lead from each element to the next.
bool is_evenly_spaced(const std::vector<std::uint64_t>& places) {
  for (std::size_t i = 2; i < places.size(); ++i)
    if (places[i] - places[i - 1] != places[1] - places[0]) return false;
  return true;
}

TEST_CASE("A view is what xtensor sees, however it is transposed, merged and sliced") {
  std::uint64_t merged = 0, refused = 0;
  for (const std::uint64_t seed : seeds(300)) {
    CAPTURE(seed);
    Random random(seed);
    Dims shape;
    for (std::uint64_t ndim = pick(random, 2, 4); ndim > 0; --ndim) shape.push_back(pick(random, 1, 4));
    View view = View::of(shape);
    Elems elems = xt::arange<std::uint64_t>(*num_elems(shape));
    elems.reshape(std::vector<std::size_t>(shape.begin(), shape.end()));
    for (int step = 0; step < 5 && view.shape.size() > 1; ++step) {
      const std::size_t dim = pick(random, 0, view.shape.size() - 2);
      if (random() % 3 == 0) {  // the first indices of a dim
        view.shape[dim] = pick(random, 1, view.shape[dim]);
        xt::xstrided_slice_vector slices(dim, xt::all());
        slices.emplace_back(xt::range(0, view.shape[dim]));
        slices.emplace_back(xt::ellipsis());
        elems = Elems(xt::strided_view(elems, slices));
      } else if (random() % 2 == 0) {
        view = view.transposed();
        std::vector<std::size_t> order(view.shape.size());
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::swap(order.end()[-1], order.end()[-2]);
        elems = Elems(xt::transpose(elems, order));
      } else if (const auto next = view.merged(dim)) {
        ++merged;
        view = *next;
        elems.reshape(std::vector<std::size_t>(view.shape.begin(), view.shape.end()));
      } else {
        ++refused;
        const View both{{view.shape[dim], view.shape[dim + 1]}, {view.strides[dim], view.strides[dim + 1]}};
        CHECK_FALSE(is_evenly_spaced(offsets(both)));
      }
      REQUIRE(offsets(view) == in_c_order(elems));
      std::vector<std::uint64_t> counted(offsets(view).size());
      std::iota(counted.begin(), counted.end(), std::uint64_t{0});
      if (view == View::of(view.shape)) CHECK(offsets(view) == counted);
    }
  }
  if (!has_all_seeds()) return;
  CHECK(merged > 50);
  CHECK(refused > 10);
}

TEST_CASE("Dims are ordered from the largest stride to the smallest") {
  CHECK(dims_by_stride({12, 4, 1}) == Dims{0, 1, 2});
  CHECK(dims_by_stride({1, 4, 4, 0}) == Dims{1, 2, 0, 3});
}

TEST_CASE("Permuted dims are taken back") {
  const Dims dims{7, 8, 9}, order{2, 0, 1};
  CHECK(permuted(dims, order) == Dims{9, 7, 8});
  CHECK(unpermuted({9, 7, 8}, order) == dims);
  CHECK(permuted(dims, {}) == dims);
  CHECK(unpermuted(dims, {}) == dims);
}

}  // namespace
}  // namespace reshard::test
