#include "reshard/layouts/map/flat_range.h"

#include <algorithm>

#include "reshard/tensor/values/shape.h"

namespace reshard {

std::vector<Box> boxes_of_range(const Dims& shape, std::uint64_t begin, std::uint64_t count) {
  std::vector<Box> boxes;
  if (num_elems(shape) == 0u) return {whole(shape)};
  const Dims strides = c_strides(shape);
  const std::uint64_t end = begin + count;
  // At each position, take the box with the most dims that begins there and does not exceed the end.
  while (begin < end) {
    std::size_t dim = 0;  // the dim along which the box is cut; later dims are whole
    while (dim < shape.size() && (begin % strides[dim] != 0 || strides[dim] > end - begin)) ++dim;
    Box box{Dims(shape.size(), 0), Dims(shape.size(), 1)};
    std::uint64_t rest = begin;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      box.begin[d] = rest / strides[d];
      rest %= strides[d];
      if (d > dim) box.size[d] = shape[d];
    }
    if (dim < shape.size()) box.size[dim] = std::min((end - begin) / strides[dim], shape[dim] - box.begin[dim]);
    begin += volume(box);
    boxes.push_back(std::move(box));
  }
  return boxes;
}

}  // namespace reshard
