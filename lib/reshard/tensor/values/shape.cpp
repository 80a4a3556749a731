#include "reshard/tensor/values/shape.h"

#include <algorithm>

#include "reshard/base/checked.h"

namespace reshard {

std::optional<std::uint64_t> num_elems(const Dims& shape) {
  std::uint64_t elems = 1;
  for (const std::uint64_t size : shape) {
    const auto product = checked_mul(elems, size);
    if (!product) return std::nullopt;
    elems = *product;
  }
  return elems;
}

std::optional<std::uint64_t> num_bytes(DType dtype, const Dims& shape) {
  const auto elems = num_elems(shape);
  if (!elems) return std::nullopt;
  const auto total_bits = checked_mul(*elems, bits(dtype));
  if (!total_bits || *total_bits % 8 != 0) return std::nullopt;
  return *total_bits / 8;
}

Dims c_strides(const Dims& shape) {
  Dims strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

std::string to_string(const Dims& shape) {
  constexpr std::size_t kShown = 16;  // a hostile shape must not flood an error message
  std::string text = "[";
  for (std::size_t i = 0; i < std::min(shape.size(), kShown); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + (shape.size() > kShown ? ", … (" + std::to_string(shape.size()) + " dims)]" : "]");
}

}  // namespace reshard
