#include "reshard/tensor/values/view.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace reshard {

View View::of(Dims shape) {
  Dims strides = c_strides(shape);
  return {std::move(shape), std::move(strides)};
}

std::uint64_t View::offset(const Dims& index) const {
  return std::inner_product(index.begin(), index.end(), strides.begin(), std::uint64_t{0});
}

std::optional<View> View::merged(std::size_t dim) const {
  const bool are_both_split = shape[dim] > 1 && shape[dim + 1] > 1;
  if (are_both_split && strides[dim] != strides[dim + 1] * shape[dim + 1]) return std::nullopt;
  View view;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (d == dim + 1) continue;
    view.shape.push_back(d == dim ? shape[d] * shape[d + 1] : shape[d]);
    view.strides.push_back(d == dim && shape[d + 1] != 1 ? strides[d + 1] : strides[d]);
  }
  return view;
}

View View::transposed() const {
  View view = *this;
  std::swap(view.shape.end()[-1], view.shape.end()[-2]);
  std::swap(view.strides.end()[-1], view.strides.end()[-2]);
  return view;
}

Dims dims_by_stride(const Dims& strides) {
  Dims order(strides.size());
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return strides[a] > strides[b]; });
  return order;
}

Dims permuted(Dims dims, const Dims& order) {
  if (order.empty()) return dims;
  Dims result(dims.size());
  for (std::size_t d = 0; d < order.size(); ++d) result[d] = dims[order[d]];
  return result;
}

Dims unpermuted(Dims dims, const Dims& order) {
  if (order.empty()) return dims;
  Dims result(dims.size());
  for (std::size_t d = 0; d < order.size(); ++d) result[order[d]] = dims[d];
  return result;
}

}  // namespace reshard
