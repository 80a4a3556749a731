#pragma once

#include <cstddef>
#include <vector>

#include "reshard/tensor/values/box.h"

namespace reshard::test {

/// The elements of a box of a tensor, in C order.
template <typename T>
std::vector<T> elements_of(const std::vector<T>& all, const Dims& shape, const Box& box) {
  std::vector<T> part(volume(box));
  for (std::size_t i = 0; i < part.size(); ++i) {
    std::size_t rest = i, at = 0, stride = 1;
    for (std::size_t d = shape.size(); d-- > 0;) {
      at += (box.begin[d] + rest % box.size[d]) * stride;
      rest /= box.size[d];
      stride *= shape[d];
    }
    part[i] = all[at];
  }
  return part;
}

}  // namespace reshard::test
