#include "reshard/layouts/map/region.h"

#include <map>

#include "support/catch.h"
#include "support/random.h"

namespace reshard::test {
namespace {

Dims index_of(std::uint64_t elem, const Dims& shape) {
  Dims index(shape.size());
  for (std::size_t d = shape.size(); d-- > 0; elem /= shape[d]) index[d] = elem % shape[d];
  return index;
}

/// An element of one of the tensors that an array holds.
using Element = std::pair<std::uint32_t, std::vector<std::uint64_t>>;

/// The oracle: what the array has at `index`.
Element element_at(const Packing& packing, const Dims& index) {
  std::vector<std::uint64_t> at(index.begin(), index.end());
  if (packing.is_stack) return {static_cast<std::uint32_t>(at.front()), {at.begin() + 1, at.end()}};
  if (packing.head_dim == 0) return {0, at};
  const std::uint64_t head = at[0] / packing.head_dim * packing.head_dim, row = at[0] - head;
  at[0] = head + row % 2 * (packing.head_dim / 2) + row / 2;
  return {0, at};
}

/// The elements of a region, by their offset in an array whose elements a view has at `strides`.
void collect(const Region& region, const PlacedView& placed, std::map<std::uint64_t, Element>& found) {
  for (std::uint64_t i = 0; i < num_elems(region.box.size).value(); ++i) {
    const Dims index = index_of(i, region.box.size);
    Element element{region.tensor, {}};
    for (std::size_t d = 0; d < index.size(); ++d) element.second.push_back(region.box.begin[d] + index[d]);
    CHECK(found.emplace(placed.offset + placed.view.offset(index), element).second);
  }
}

TEST_CASE("Any box of an array that holds tensors is cut into regions, and these are boxes of one view") {
  for (const std::uint64_t seed : seeds(400)) {
    CAPTURE(seed);
    Random random(seed);
    Packing packing;
    Dims shape{pick(random, 1, 5), pick(random, 1, 4)};
    switch (random() % 3) {
      case 0: packing.is_stack = true; break;
      case 1:
        packing.head_dim = 2 * pick(random, 1, 3);
        shape[0] *= packing.head_dim;
        break;
      default: break;
    }
    if (random() % 2 == 0) shape.push_back(pick(random, 1, 3));
    if (packing.head_dim > 0 && random() % 4 == 0) shape = {shape[0]};  // a bias
    Box box;
    for (const std::uint64_t size : shape) {
      box.begin.push_back(pick(random, 0, size - 1));
      box.size.push_back(pick(random, 1, size - box.begin.back()));
    }
    std::map<std::uint64_t, Element> expected, cut, boxed;
    for (std::uint64_t i = 0; i < volume(box); ++i) {
      Dims index = index_of(i, box.size);
      for (std::size_t d = 0; d < index.size(); ++d) index[d] += box.begin[d];
      expected.emplace(i, element_at(packing, index));
    }
    const std::vector<Region> regions = packing.regions_in(shape, box);
    for (const Region& region : regions) collect(region, view_of(region, c_strides(box.size)), cut);
    CHECK(cut == expected);
    const BoxedRegions boxes = as_boxes(box.size, regions);
    CHECK(num_elems(boxes.view.shape) == volume(box));
    for (const Region& region : boxes.regions) {
      CHECK(contains(boxes.view.shape, {region.begin, region.box.size}));
      collect(region, {boxes.view.offset(region.begin), {region.box.size, boxes.view.strides}}, boxed);
    }
    CHECK(boxed == expected);
  }
}

TEST_CASE("Pairs of rows become one row each, and where they cannot, each row is a region") {
  const Packing packing{.head_dim = 4};
  const Dims shape{8, 3};
  const auto boxes = [&](std::uint64_t begin, std::uint64_t rows) {
    const Box box{{begin, 0}, {rows, 3}};
    return as_boxes(box.size, packing.regions_in(shape, box));
  };
  CHECK(boxes(0, 8).view == reshard::View::of({4, 6}));
  CHECK(boxes(0, 8).regions.size() == 4);
  CHECK(boxes(1, 6).view == reshard::View::of({3, 6}));
  CHECK(boxes(0, 7).view == reshard::View::of({7, 3}));
  CHECK(boxes(0, 7).regions.size() == 7);
}

}  // namespace
}  // namespace reshard::test
