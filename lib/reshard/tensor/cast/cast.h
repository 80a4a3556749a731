#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "reshard/tensor/values/dtype.h"

namespace reshard {

/// What to do with finite values beyond the target's largest finite value.
enum class Overflow : std::uint8_t {
  kSaturate,  // use the largest finite value of the same sign
  kError,     // report it to the caller
};

/// Values of a cast that overflowed.
struct Overflowed {
  std::size_t first = 0;    // index of the first one
  std::uint64_t count = 0;  // at least 1
};

/// Whether integers and BOOL may be cast.
enum class Integers : std::uint8_t { kRefuse, kAllow };

/// Whether casts from `from` to `to` exist: from any float of at least 8 bits to F64, F32, F16, BF16, F8_E4M3 and
/// F8_E5M2; from integers and BOOL to the same dtypes, if allowed; and from any dtype to itself. No other casts of
/// complex and sub-byte dtypes exist.
constexpr bool can_cast(DType from, DType to, Integers integers = Integers::kRefuse) {
  if (from == to) return true;
  const bool is_target = to == DType::kF64 || to == DType::kF32 || to == DType::kF16 || to == DType::kBF16 ||
                         to == DType::kF8E4M3 || to == DType::kF8E5M2;
  if (!is_target || bits(from) < 8 || describe(from).kind == DTypeClass::kComplex) return false;
  return describe(from).kind == DTypeClass::kFloat || integers == Integers::kAllow;
}

/// Casts little-endian elements. Rounds the exact source value once, to the nearest value of `to`, ties to even.
/// Subnormals of both dtypes are exact, and -0 stays -0. Values beyond the largest finite value *after rounding*
/// overflow and are saturated. Infinities are preserved, except that they overflow in F8_E4M3, which has none. A NaN
/// stays NaN with its sign and becomes quiet; its payload is truncated or zero-padded at the low end. F8_E4M3 has a
/// single NaN; the NaN of F8_E8M0 and the fnuz dtypes has no sign and becomes positive. Any nonzero BOOL is 1. A cast
/// to the same dtype copies the bytes, including signalling NaNs.
/// \param from, to  can_cast(from, to, Integers::kAllow) must be true.
/// \param in        any alignment.
/// \param out       any alignment, as many elements as `in`; must not overlap `in`.
/// \returns the values that overflowed with kError, if any; otherwise std::nullopt. `out` is the same as with kSaturate.
/// \throws Error kUsage if RESHARD_SIMD names an instruction set that this machine lacks (simd.h).
/// Returns the same result on every machine, given the default rounding mode. Does not allocate.
std::optional<Overflowed> cast_elements(DType from, std::span<const std::byte> in, DType to, std::span<std::byte> out,
                                        Overflow overflow);

/// Whether casts round small normal values to 0: from a float to one with fewer bits for the exponent.
bool rounds_to_zero(DType from, DType to);

/// Returns the number of zeros, of either sign, among little-endian elements of a float of 8, 16, 32 or 64 bits.
std::uint64_t count_zeros(DType dtype, std::span<const std::byte> elements);

}  // namespace reshard
