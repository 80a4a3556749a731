#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "reshard/tensor/values/float_format.h"

namespace reshard {

/// The exact value of a real element: (-1)^negative * significand * 2^exponent. An infinity has neither significand nor
/// exponent. The significand of a NaN is its payload: the mantissa, aligned to the top of 64 bits.
struct Number {
  enum class Kind : std::uint8_t { kFinite, kInfinite, kNan };

  Kind kind = Kind::kFinite;
  bool negative = false;
  std::uint64_t significand = 0;
  int exponent = 0;
};

constexpr Number float_number(const FloatFormat& format, std::uint64_t code) {
  const std::uint64_t mantissa = code & format.mantissa_mask();
  const std::uint64_t exponent = (code >> format.mantissa_bits) & format.exponent_mask();
  const bool negative = (code & format.sign_mask()) != 0;
  const std::uint64_t magnitude = code & (format.sign_mask() - 1);
  const Number nan{Number::Kind::kNan, negative, mantissa << (64 - format.mantissa_bits), 0};
  switch (format.specials) {
    case FloatSpecials::kNone: break;
    case FloatSpecials::kIeee:
      if (magnitude == format.infinity()) return {Number::Kind::kInfinite, negative, 0, 0};
      if (magnitude > format.infinity()) return nan;
      break;
    case FloatSpecials::kAllOnesNan:
      if (magnitude > format.max_finite()) return nan;
      break;
    case FloatSpecials::kNegativeZeroNan:
      if (negative && magnitude == 0) return {Number::Kind::kNan, false, 0, 0};
      break;
  }
  const int unit = 1 - format.bias - format.mantissa_bits;  // weight of the last mantissa bit of subnormals
  if (exponent == 0) return {Number::Kind::kFinite, negative, mantissa, unit};
  return {Number::Kind::kFinite, negative, mantissa | (format.mantissa_mask() + 1),
          unit + static_cast<int>(exponent) - 1};
}

/// Requires `code` sign-extended to 64 bits if `is_signed`.
constexpr Number integer_number(bool is_signed, std::uint64_t code) {
  const bool negative = is_signed && (code >> 63) != 0;
  return {Number::Kind::kFinite, negative, negative ? std::uint64_t{0} - code : code, 0};
}

/// Returns the value of an element's bits. Any nonzero BOOL is 1. Not for complex dtypes.
constexpr Number number_of(DType dtype, std::uint64_t code) {
  if (const auto format = float_format(dtype)) return float_number(*format, code);
  if (dtype == DType::kBool) return integer_number(false, code != 0);
  if (dtype == DType::kF8E8M0 && code == 0xFF) return {Number::Kind::kNan, false, 0, 0};
  if (dtype == DType::kF8E8M0) return {Number::Kind::kFinite, false, 1, static_cast<int>(code) - 127};
  if (describe(dtype).kind == DTypeClass::kUnsigned) return integer_number(false, code);
  const int unused_bits = 64 - static_cast<int>(bits(dtype));
  return integer_number(true,
                        static_cast<std::uint64_t>(static_cast<std::int64_t>(code << unused_bits) >> unused_bits));
}

/// Returns value / 2^shift, rounded to the nearest integer, ties to even. Requires 0 < shift.
constexpr std::uint64_t shift_right_to_nearest_even(std::uint64_t value, int shift) {
  if (shift > static_cast<int>(std::bit_width(value))) return 0;  // less than half
  if (shift == 64) return value > std::uint64_t{1} << 63;
  const std::uint64_t floor = value >> shift;
  const std::uint64_t rest = value & ((std::uint64_t{1} << shift) - 1);
  const std::uint64_t half = std::uint64_t{1} << (shift - 1);
  return floor + (rest > half || (rest == half && (floor & 1) != 0));
}

/// Rounds `number` to the bits of `format`, by the rules of cast.h with saturation. Sets `overflowed` if the value does
/// not fit; otherwise leaves it unchanged. Infinity and NaN require a format with a NaN other than -0.
constexpr std::uint64_t float_code(const FloatFormat& format, const Number& number, bool& overflowed) {
  const std::uint64_t sign = number.negative ? format.sign_mask() : 0;
  const bool ieee = format.specials == FloatSpecials::kIeee;
  if (number.kind == Number::Kind::kNan) {
    if (!ieee) return sign | (format.max_finite() + 1);
    return sign | format.infinity() | format.quiet_bit() | (number.significand >> (64 - format.mantissa_bits));
  }
  if (number.kind == Number::Kind::kInfinite) {
    if (ieee) return sign | format.infinity();
    overflowed = true;
    return sign | format.max_finite();
  }
  if (number.significand == 0) return sign;
  // The binade determines the weight of the last bit; subnormals use the weight of the smallest normal numbers.
  const int top = number.exponent + static_cast<int>(std::bit_width(number.significand)) - 1;
  const int binade = top < 1 - format.bias ? 1 - format.bias : top;
  const int shift = binade - format.mantissa_bits - number.exponent;
  const std::uint64_t rounded =
      shift > 0 ? shift_right_to_nearest_even(number.significand, shift) : number.significand << -shift;
  // A normal number's leading 1, or a carry out of the mantissa, adds one to the exponent.
  const auto exponent = static_cast<std::uint64_t>(binade + format.bias - 1);
  const std::uint64_t code = (exponent << format.mantissa_bits) + rounded;
  if (code <= format.max_finite()) return sign | code;
  overflowed = true;
  return sign | format.max_finite();
}

/// Loads the little-endian bits of an element of whole bytes, at any alignment.
template <std::size_t kBytes>
std::uint64_t load_code(const std::byte* at) {
  std::uint64_t code = 0;
  std::memcpy(&code, at, kBytes);
  return code;
}

/// Returns the bits of an element of any dtype. Sub-byte elements are stored from the low bits of a byte upwards, and
/// may extend into the next byte.
inline std::uint64_t element_code(DType dtype, const std::byte* bytes, std::size_t index) {
  const std::size_t width = bits(dtype);
  switch (width) {
    case 8: return load_code<1>(bytes + index);
    case 16: return load_code<2>(bytes + index * 2);
    case 32: return load_code<4>(bytes + index * 4);
    case 64: return load_code<8>(bytes + index * 8);
  }
  const std::byte* const at = bytes + index * width / 8;
  const std::size_t skipped = index * width % 8;
  std::uint64_t code = load_code<1>(at);
  if (skipped + width > 8) code |= load_code<1>(at + 1) << 8;
  return (code >> skipped) & ((std::uint64_t{1} << width) - 1);
}

}  // namespace reshard
