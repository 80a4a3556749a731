#pragma once

#include <cstdint>
#include <optional>

#include "reshard/tensor/values/dtype.h"

namespace reshard {

/// Bit patterns of a float that are not finite numbers.
enum class FloatSpecials : std::uint8_t {
  kNone,             // none
  kIeee,             // the highest exponent: infinity if the mantissa is 0, otherwise NaN
  kAllOnesNan,       // NaN if all bits but the sign are ones; no infinity
  kNegativeZeroNan,  // the only NaN has the bits of -0; no infinity
};

/// A float with sign, exponent and mantissa, from the top bit down. Tables: IEEE 754, OCP FP8 (E4M3, E5M2), OCP MX v1.0
/// (F4, F6) and the "fnuz" forms of F8. F8_E8M0 is not one of them: it has neither sign nor zero.
struct FloatFormat {
  DType dtype;
  int exponent_bits;
  int mantissa_bits;
  int bias;
  FloatSpecials specials;

  constexpr std::uint64_t mantissa_mask() const { return (std::uint64_t{1} << mantissa_bits) - 1; }
  constexpr std::uint64_t exponent_mask() const { return (std::uint64_t{1} << exponent_bits) - 1; }
  constexpr std::uint64_t sign_mask() const { return std::uint64_t{1} << (exponent_bits + mantissa_bits); }
  /// The bits of +infinity. IEEE formats only.
  constexpr std::uint64_t infinity() const { return exponent_mask() << mantissa_bits; }
  /// The mantissa bit that marks a quiet NaN. IEEE formats only.
  constexpr std::uint64_t quiet_bit() const { return std::uint64_t{1} << (mantissa_bits - 1); }
  /// The bits of the largest finite number.
  constexpr std::uint64_t max_finite() const {
    if (specials == FloatSpecials::kIeee) return infinity() - 1;
    return sign_mask() - (specials == FloatSpecials::kAllOnesNan ? 2 : 1);
  }
};

inline constexpr FloatFormat kFloatFormats[] = {
    {DType::kF4, 2, 1, 1, FloatSpecials::kNone},
    {DType::kF6E2M3, 2, 3, 1, FloatSpecials::kNone},
    {DType::kF6E3M2, 3, 2, 3, FloatSpecials::kNone},
    {DType::kF8E5M2, 5, 2, 15, FloatSpecials::kIeee},
    {DType::kF8E4M3, 4, 3, 7, FloatSpecials::kAllOnesNan},
    {DType::kF8E4M3FNUZ, 4, 3, 8, FloatSpecials::kNegativeZeroNan},
    {DType::kF8E5M2FNUZ, 5, 2, 16, FloatSpecials::kNegativeZeroNan},
    {DType::kF16, 5, 10, 15, FloatSpecials::kIeee},
    {DType::kBF16, 8, 7, 127, FloatSpecials::kIeee},
    {DType::kF32, 8, 23, 127, FloatSpecials::kIeee},
    {DType::kF64, 11, 52, 1023, FloatSpecials::kIeee},
};

/// Returns the format of a dtype; std::nullopt for integers, complex numbers and F8_E8M0.
constexpr std::optional<FloatFormat> float_format(DType dtype) {
  for (const FloatFormat& format : kFloatFormats)
    if (format.dtype == dtype) return format;
  return std::nullopt;
}

}  // namespace reshard
