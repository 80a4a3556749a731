#include "tensor/cast/cast_oracle.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace reshard::test {
namespace {

constexpr long double kNan = std::numeric_limits<long double>::quiet_NaN();
constexpr long double kInf = std::numeric_limits<long double>::infinity();

bool bit(std::uint64_t code, int position) {
  return (code >> position & 1) != 0;
}

/// Sign, exponent and mantissa put together with ldexp; what is special about the top exponent is the caller's.
long double plain_value(std::uint64_t code, int width, int mantissa_width, int bias) {
  const auto exponent =
      static_cast<int>(code >> mantissa_width & ((std::uint64_t{1} << (width - 1 - mantissa_width)) - 1));
  const auto mantissa = static_cast<long double>(code & ((std::uint64_t{1} << mantissa_width) - 1));
  const long double fraction = std::ldexp(mantissa, -mantissa_width);
  const long double value = exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
  return bit(code, width - 1) ? -value : value;
}

long double f8_e5m2_value(std::uint64_t code) {
  if ((code & 0x7F) == 0x7C) return code == 0x7C ? kInf : -kInf;
  return (code & 0x7F) > 0x7C ? kNan : plain_value(code, 8, 2, 15);
}

long double f16_value(std::uint64_t code) {
  if ((code & 0x7FFF) == 0x7C00) return code == 0x7C00 ? kInf : -kInf;
  return (code & 0x7FFF) > 0x7C00 ? kNan : plain_value(code, 16, 10, 15);
}

}  // namespace

long double value_of(DType dtype, std::uint64_t code) {
  switch (dtype) {
    case DType::kF8E5M2: return f8_e5m2_value(code);
    case DType::kF8E4M3: return (code & 0x7F) == 0x7F ? kNan : plain_value(code, 8, 3, 7);
    case DType::kF8E8M0: return code == 255 ? kNan : std::ldexp(1.0L, static_cast<int>(code) - 127);
    case DType::kF8E4M3FNUZ: return code == 0x80 ? kNan : plain_value(code, 8, 3, 8);
    case DType::kF8E5M2FNUZ: return code == 0x80 ? kNan : plain_value(code, 8, 2, 16);
    case DType::kF16: return f16_value(code);
    case DType::kBF16: return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 16);
    case DType::kF32: return std::bit_cast<float>(static_cast<std::uint32_t>(code));
    case DType::kF64: return std::bit_cast<double>(code);
    case DType::kBool: return code != 0 ? 1 : 0;
    case DType::kI8: return static_cast<std::int8_t>(code);
    case DType::kI16: return static_cast<std::int16_t>(code);
    case DType::kI32: return static_cast<std::int32_t>(code);
    case DType::kI64: return static_cast<long double>(static_cast<std::int64_t>(code));
    case DType::kU8:
    case DType::kU16:
    case DType::kU32:
    case DType::kU64: return static_cast<long double>(code);
    case DType::kF4:
    case DType::kF6E2M3:
    case DType::kF6E3M2:
    case DType::kC64: break;
  }
  throw std::logic_error("not a dtype that is cast");
}

int mantissa_bits(DType dtype) {
  if (dtype == DType::kF8E8M0) return 0;
  if (dtype == DType::kF8E5M2 || dtype == DType::kF8E5M2FNUZ) return 2;
  if (bits(dtype) == 8) return 3;
  if (dtype == DType::kBF16) return 7;
  return dtype == DType::kF16 ? 10 : dtype == DType::kF32 ? 23 : 52;
}

std::vector<long double> ascending_values(DType dtype) {
  std::vector<long double> values;
  for (std::uint64_t code = 0; std::isfinite(value_of(dtype, code)) && !bit(code, static_cast<int>(bits(dtype)) - 1);
       ++code)
    values.push_back(value_of(dtype, code));
  values.push_back(2 * values.back() - values[values.size() - 2]);
  return values;
}

CastOracle::CastOracle(DType from, DType to) : from_(from), to_(to) {
  if (bits(to) <= 16) values_ = ascending_values(to);
}

Expected CastOracle::cast(std::uint64_t code) const {
  const long double value = value_of(from_, code);
  if (std::isnan(value)) return {nan_code(code), false};
  Expected result = nearest(std::fabs(value));
  if (std::signbit(value)) result.code |= std::uint64_t{1} << (bits(to_) - 1);
  return result;
}

/// Quiet, with the sign and as much of the payload as fits.
std::uint64_t CastOracle::nan_code(std::uint64_t code) const {
  const bool has_sign = from_ != DType::kF8E8M0 && from_ != DType::kF8E4M3FNUZ && from_ != DType::kF8E5M2FNUZ;
  const bool negative = has_sign && bit(code, static_cast<int>(bits(from_)) - 1);
  const std::uint64_t sign = negative ? std::uint64_t{1} << (bits(to_) - 1) : 0;
  if (to_ == DType::kF8E4M3) return sign | 0x7F;
  std::uint64_t result = ((std::uint64_t{1} << (bits(to_) - 1)) - 1) >> mantissa_bits(to_) << mantissa_bits(to_);
  for (int i = 1; i <= mantissa_bits(to_); ++i) {
    const bool payload = has_sign && i <= mantissa_bits(from_) && bit(code, mantissa_bits(from_) - i);
    if (payload || i == 1) result |= std::uint64_t{1} << (mantissa_bits(to_) - i);
  }
  return sign | result;
}

Expected CastOracle::nearest(long double magnitude) const {
  if (to_ == DType::kF64) return {std::bit_cast<std::uint64_t>(static_cast<double>(magnitude)), false};
  const bool is_infinite = std::isinf(magnitude);
  if (to_ == DType::kF32) {
    const auto value = static_cast<float>(magnitude);
    if (std::isinf(value) && !is_infinite) return {0x7F7FFFFF, true};
    return {std::bit_cast<std::uint32_t>(value), false};
  }
  const std::uint64_t largest = values_.size() - 2;
  if (is_infinite && to_ != DType::kF8E4M3) return {largest + 1, false};
  const auto above = std::lower_bound(values_.begin(), values_.end(), magnitude);
  if (above == values_.end()) return {largest, true};
  auto code = static_cast<std::uint64_t>(above - values_.begin());
  if (*above != magnitude) {
    const long double up = *above - magnitude;
    const long double down = magnitude - *(above - 1);
    if (down < up || (down == up && (code & 1) != 0)) --code;
  }
  return code > largest ? Expected{largest, true} : Expected{code, false};
}

}  // namespace reshard::test
