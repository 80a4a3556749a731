#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "reshard/tensor/values/dtype.h"

namespace reshard {

/// What becomes of a finite value beyond the target's largest finite one.
enum class Overflow : std::uint8_t {
  kSaturate,  // the largest finite value of the same sign
  kError,     // the caller is told
};

/// Whether integers and BOOL count as numbers to cast.
enum class Integers : std::uint8_t { kRefuse, kAllow };

/// True for casts from any float of 8 bits and more to F64, F32, F16, BF16, F8_E4M3 or F8_E5M2; from integers and BOOL
/// if allowed; and from any dtype to itself. Complex and sub-byte dtypes are cast to nothing else.
constexpr bool can_cast(DType from, DType to, Integers integers = Integers::kRefuse) {
  if (from == to) return true;
  const bool is_target = to == DType::kF64 || to == DType::kF32 || to == DType::kF16 || to == DType::kBF16 ||
                         to == DType::kF8E4M3 || to == DType::kF8E5M2;
  if (!is_target || bits(from) < 8 || describe(from).kind == DTypeClass::kComplex) return false;
  return describe(from).kind == DTypeClass::kFloat || integers == Integers::kAllow;
}

/// Casts little-endian elements. Every value becomes the nearest one of `to`, ties to the even mantissa, in one
/// rounding from the exact source value; subnormals of either side are as exact as other values, and -0 stays -0.
/// Values beyond the largest finite one *after rounding* overflow, and are saturated. Infinities stay; F8_E4M3 has
/// none, so that there they overflow. NaN stays NaN with its sign: quiet, its payload cut or padded with zeros at the
/// low end (F8_E4M3: its one NaN; the NaN of F8_E8M0 and the fnuz dtypes, which has no sign, becomes the positive one).
/// Any nonzero BOOL is 1. A dtype is cast to itself by copying the bytes, signalling NaNs and all.
/// \param from, to  can_cast(from, to, Integers::kAllow) must hold.
/// \param in   any alignment.
/// \param out  any alignment, of as many elements as `in`; must not overlap it.
/// \returns under kError the index of the first value that overflowed, if one did. `out` is the same as under
/// kSaturate.
/// \throws Error kUsage if RESHARD_SIMD names no instruction set of this machine (simd.h).
/// The same on every machine, given the default rounding mode of the floating-point unit. Allocates nothing.
std::optional<std::size_t> cast_elements(DType from, std::span<const std::byte> in, DType to, std::span<std::byte> out,
                                         Overflow overflow);

}  // namespace reshard
