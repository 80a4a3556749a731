#pragma once

#include <cstdint>
#include <optional>

namespace reshard {

/// Returns a + b or a * b, or std::nullopt if the result does not fit in 64 bits. Every size read from a file goes
/// through these.
inline std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

inline std::optional<std::uint64_t> checked_mul(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

/// Returns the least multiple of `step` that is not less than `number`. The caller bounds both, so that it fits.
template <typename Integer>
constexpr Integer rounded_up(Integer number, Integer step) {
  return (number + step - 1) / step * step;
}

}  // namespace reshard
