#include "reshard/tensor/cast/format_element.h"

#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "reshard/tensor/values/number.h"

namespace reshard {
namespace {

std::string hex(DType dtype, std::uint64_t code) {
  std::array<char, 24> text;
  const int length = std::snprintf(text.data(), text.size(), "(0x%0*llx)", static_cast<int>((bits(dtype) + 3) / 4),
                                   static_cast<unsigned long long>(code));
  return {text.data(), static_cast<std::size_t>(length)};
}

std::string shortest(auto value) {
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

/// Formats a number of a narrow float with the fewest digits that round to its bits.
std::string shortest_narrow(const FloatFormat& format, std::uint64_t code) {
  const Number number = float_number(format, code);
  const double magnitude = std::ldexp(static_cast<double>(number.significand), number.exponent);
  const double value = number.negative ? -magnitude : magnitude;
  constexpr FloatFormat kF64 = *float_format(DType::kF64);
  std::array<char, 32> text;
  for (int digits = 1;; ++digits) {
    const char* const end =
        std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::general, digits).ptr;
    double read = 0;
    std::from_chars(text.data(), end, read);
    bool overflowed = false;
    const std::uint64_t again = float_code(format, float_number(kF64, std::bit_cast<std::uint64_t>(read)), overflowed);
    if ((again == code && !overflowed) || digits == 17) return shortest(read);
  }
}

std::string format_float(DType dtype, std::uint64_t code) {
  const Number number = number_of(dtype, code);
  if (number.kind == Number::Kind::kNan) return "nan" + hex(dtype, code);
  if (number.kind == Number::Kind::kInfinite) return number.negative ? "-inf" : "inf";
  if (dtype == DType::kF64) return shortest(std::bit_cast<double>(code));
  if (dtype == DType::kF32) return shortest(std::bit_cast<float>(static_cast<std::uint32_t>(code)));
  if (const auto format = float_format(dtype)) return shortest_narrow(*format, code);
  return shortest(std::ldexp(1.0f, number.exponent));  // F8_E8M0
}

}  // namespace

std::string format_element(DType dtype, std::span<const std::byte> bytes, std::size_t index) {
  const std::uint64_t code = element_code(dtype, bytes.data(), index);
  switch (describe(dtype).kind) {
    case DTypeClass::kBool: return code == 0 ? "false" : code == 1 ? "true" : "true" + hex(dtype, code);
    case DTypeClass::kUnsigned: return std::to_string(code);
    case DTypeClass::kSigned: {
      const Number number = number_of(dtype, code);
      return (number.negative ? "-" : "") + std::to_string(number.significand);
    }
    case DTypeClass::kFloat: return format_float(dtype, code);
    case DTypeClass::kComplex:
      return "(" + format_float(DType::kF32, code & 0xFFFFFFFF) + ", " + format_float(DType::kF32, code >> 32) + ")";
  }
  return {};
}

}  // namespace reshard
