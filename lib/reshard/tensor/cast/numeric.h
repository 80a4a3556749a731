#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <tuple>
#include <vector>

#include "reshard/tensor/values/dtype.h"

namespace reshard {

/// Statistics of the values of a tensor, or of part of one.
struct ValueSummary {
  std::uint64_t count = 0;  // all values
  std::uint64_t nan_count = 0;
  std::uint64_t inf_count = 0;
  double min = std::numeric_limits<double>::infinity();  // ignores NaNs, but not infinities
  double max = -std::numeric_limits<double>::infinity();
  double finite_sum = 0;  // the sum of finite values below kHugeValue in magnitude
  double huge_sum = 0;    // the sum of the others times kHugeScale, so that it never overflows
  std::uint64_t finite_count = 0;

  static auto fields(auto& self) {
    return std::tie(self.count, self.nan_count, self.inf_count, self.min, self.max, self.finite_sum, self.huge_sum,
                    self.finite_count);
  }

  static constexpr double kHugeValue = 0x1p900;
  static constexpr double kHugeScale = 0x1p-64;

  /// Adds the summary of the values that come after these.
  void append(const ValueSummary& next);
  /// Mean of the finite values, which is finite; NaN without any.
  double mean() const;
};

/// Summarises C-ordered little-endian values. Complex values count as two numbers each. Sub-byte values are taken from
/// the low bits of a byte first, which for a summary is as good as any other order. 64-bit integers are rounded to
/// double.
ValueSummary summarize(DType dtype, std::span<const std::byte> bytes);

/// Gives every element the same bits. A sub-byte dtype can only be filled with zeros.
void fill_elements(DType dtype, std::span<std::byte> out, std::uint64_t element_bits);

/// The bits of the lowest finite number of a float dtype; 0 for others.
std::uint64_t lowest_bits(DType dtype);

/// The value of one element of a dtype of at most 8 bits. Tables: OCP MX v1.0 (F4, F6, F8_E8M0), OCP FP8 (E4M3, E5M2)
/// and the "fnuz" forms, which have no negative zero and no infinities.
double small_float_value(DType dtype, std::uint8_t bits);

}  // namespace reshard
