#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "reshard/tensor/values/dtype.h"

namespace reshard {

/// How far values may be apart. Neither is negative or NaN.
struct Tolerance {
  double relative = 0;
  double absolute = 0;

  constexpr bool is_zero() const { return relative == 0 && absolute == 0; }
};

/// One element that differs, by its index in the compared bytes. The values are rounded to double, which may hide the
/// difference; format_element does not. Of complex elements they are the first parts that differ.
struct Difference {
  std::size_t index;
  double a;
  double b;
};

struct DifferenceSummary {
  std::uint64_t differing = 0;  // elements
  std::vector<Difference> first;
  double max_abs_difference = 0;  // of all elements, also those within the tolerance; pairs with a NaN do not count
};

/// True for equal dtypes and for any two that are floats of 8 bits and more, integers or BOOL.
bool can_compare(DType a_dtype, DType b_dtype);

/// Compares elements at any alignment.
/// - Without tolerance and with equal dtypes, elements differ if their bits do: -0 is not 0, and NaNs have payloads.
/// - With a tolerance of 0, and without one where dtypes differ, they differ if their values do, exactly, 64-bit
///   integers too; NaN equals NaN and -0 equals 0. Any nonzero BOOL is 1.
/// - With another tolerance they are equal if |a - b| <= absolute + relative * |b|, both as doubles. NaN equals NaN and
///   no number; infinities are equal if their signs are. The difference of two integers is taken before it is rounded.
/// A complex element differs if one of its parts does. Sub-byte elements lie from the low bits of a byte up.
/// \param a, b  the same number of elements, of dtypes for which can_compare holds.
/// \param keep_first  how many differences are listed at most.
/// \throws Error kUsage if RESHARD_SIMD names no instruction set of this machine (simd.h).
/// Costs one memcmp where bytes and dtypes are equal, else up to some nanoseconds an element of the blocks that differ.
DifferenceSummary compare_elements(DType a_dtype, std::span<const std::byte> a, DType b_dtype,
                                   std::span<const std::byte> b, std::optional<Tolerance> tolerance,
                                   std::size_t keep_first);

}  // namespace reshard
