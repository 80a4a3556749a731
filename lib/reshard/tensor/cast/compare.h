#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "reshard/tensor/values/dtype.h"

namespace reshard {

/// Largest allowed differences of values. Neither is negative or NaN.
struct Tolerance {
  double relative = 0;
  double absolute = 0;

  constexpr bool is_zero() const { return relative == 0 && absolute == 0; }
};

/// An element that differs, by its index in the compared bytes. The values are rounded to double, which may hide the
/// difference; format_element does not. For complex elements, `a` and `b` are the first parts that differ.
struct Difference {
  std::size_t index;
  double a;
  double b;
};

struct DifferenceSummary {
  std::uint64_t differing = 0;  // number of elements
  std::vector<Difference> first;
  double max_abs_difference = 0;  // over all elements, including those within the tolerance; excludes pairs with a NaN
};

/// True for equal dtypes, and for any two that are floats of at least 8 bits, integers or BOOL.
bool can_compare(DType a_dtype, DType b_dtype);

/// Compares elements. Any alignment.
/// - Equal dtypes without tolerance: compares bits. -0 differs from 0, and NaNs with different payloads differ.
/// - A tolerance of 0, or different dtypes without tolerance: compares values exactly, including 64-bit integers. NaN
///   equals NaN, and -0 equals 0. Any nonzero BOOL is 1.
/// - Another tolerance: elements are equal if |a - b| <= absolute + relative * |b|, in double precision. NaN equals NaN
///   but no number; infinities of the same sign are equal. The difference of two integers is computed before rounding.
/// A complex element differs if one of its parts does. Sub-byte elements are stored from the low bits of a byte
/// upwards.
/// \param a, b        as many elements on both sides; can_compare must be true for their dtypes.
/// \param keep_first  maximum number of differences to list.
/// \throws Error kUsage if RESHARD_SIMD names an instruction set that this machine lacks (simd.h).
/// Costs one memcmp if bytes and dtypes are equal, otherwise up to a few nanoseconds per element of the blocks that
/// differ.
DifferenceSummary compare_elements(DType a_dtype, std::span<const std::byte> a, DType b_dtype,
                                   std::span<const std::byte> b, std::optional<Tolerance> tolerance,
                                   std::size_t keep_first);

}  // namespace reshard
