#include "reshard/tensor/cast/numeric.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "reshard/tensor/values/float_format.h"

namespace reshard {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

double decode(const FloatFormat& format, unsigned value) {
  const unsigned mantissa = value & ((1u << format.mantissa_bits) - 1);
  const unsigned exponent = (value >> format.mantissa_bits) & ((1u << format.exponent_bits) - 1);
  const bool negative = (value >> (format.mantissa_bits + format.exponent_bits)) & 1;
  const bool top_exponent = exponent == (1u << format.exponent_bits) - 1;
  const bool full_mantissa = mantissa == (1u << format.mantissa_bits) - 1;
  if (format.specials == FloatSpecials::kIeee && top_exponent) return mantissa != 0 ? kNan : negative ? -kInf : kInf;
  if (format.specials == FloatSpecials::kAllOnesNan && top_exponent && full_mantissa) return kNan;
  if (format.specials == FloatSpecials::kNegativeZeroNan && negative && exponent == 0 && mantissa == 0) return kNan;
  const double fraction = std::ldexp(static_cast<double>(mantissa), -format.mantissa_bits);
  const double magnitude = exponent == 0 ? std::ldexp(fraction, 1 - format.bias)
                                         : std::ldexp(1 + fraction, static_cast<int>(exponent) - format.bias);
  return negative ? -magnitude : magnitude;
}

double half_value(std::uint16_t value) {
  return decode(*float_format(DType::kF16), value);
}

double bfloat16_value(std::uint16_t value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

/// Values of all 65536 halves, computed once: tensors have more values than that.
const std::array<float, 65536>& half_table() {
  static const auto kTable = [] {
    std::array<float, 65536> values{};
    for (std::uint32_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(half_value(static_cast<std::uint16_t>(i)));
    return values;
  }();
  return kTable;
}

struct Accumulator {
  ValueSummary summary;

  void add(double value) {
    ++summary.count;
    if (std::isnan(value)) {
      ++summary.nan_count;
      return;
    }
    summary.min = std::min(summary.min, value);
    summary.max = std::max(summary.max, value);
    if (std::isinf(value)) {
      ++summary.inf_count;
      return;
    }
    if (std::abs(value) < ValueSummary::kHugeValue)
      summary.finite_sum += value;
    else
      summary.huge_sum += value * ValueSummary::kHugeScale;
    ++summary.finite_count;
  }
};

/// Summarizes `value_of` of each element of type T.
template <typename T, typename ValueOf>
ValueSummary summarize_as(std::span<const std::byte> bytes, ValueOf&& value_of) {
  Accumulator accumulator;
  for (std::size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
    T element;
    std::memcpy(&element, bytes.data() + at, sizeof(T));
    accumulator.add(value_of(element));
  }
  return accumulator.summary;
}

template <typename T>
ValueSummary summarize_as(std::span<const std::byte> bytes) {
  return summarize_as<T>(bytes, [](T element) { return static_cast<double>(element); });
}

ValueSummary summarize_small(DType dtype, std::span<const std::byte> bytes) {
  std::array<double, 256> table{};
  for (unsigned i = 0; i < table.size(); ++i) table[i] = small_float_value(dtype, static_cast<std::uint8_t>(i));
  const unsigned width = bits(dtype);
  const unsigned mask = (1u << width) - 1;
  Accumulator accumulator;
  unsigned pending = 0;
  unsigned pending_bits = 0;
  for (const std::byte byte : bytes) {
    pending |= static_cast<unsigned>(byte) << pending_bits;
    pending_bits += 8;
    for (; pending_bits >= width; pending_bits -= width, pending >>= width) accumulator.add(table[pending & mask]);
  }
  return accumulator.summary;
}

}  // namespace

void ValueSummary::append(const ValueSummary& next) {
  count += next.count;
  nan_count += next.nan_count;
  inf_count += next.inf_count;
  min = std::min(min, next.min);
  max = std::max(max, next.max);
  finite_sum += next.finite_sum;
  huge_sum += next.huge_sum;
  finite_count += next.finite_count;
}

double ValueSummary::mean() const {
  const auto values = static_cast<double>(finite_count);
  if (huge_sum == 0) return finite_sum / values;
  constexpr double kMost = std::numeric_limits<double>::max();
  return std::clamp((finite_sum * kHugeScale + huge_sum) / values / kHugeScale, -kMost, kMost);
}

double small_float_value(DType dtype, std::uint8_t value) {
  if (dtype == DType::kF8E8M0) return value == 255 ? kNan : std::ldexp(1.0, value - 127);
  const auto format = float_format(dtype);
  return format ? decode(*format, value & ((1u << bits(dtype)) - 1)) : kNan;
}

ValueSummary summarize(DType dtype, std::span<const std::byte> bytes) {
  switch (dtype) {
    case DType::kF4:
    case DType::kF6E2M3:
    case DType::kF6E3M2:
    case DType::kF8E5M2:
    case DType::kF8E4M3:
    case DType::kF8E8M0:
    case DType::kF8E4M3FNUZ:
    case DType::kF8E5M2FNUZ: return summarize_small(dtype, bytes);
    case DType::kBool:
    case DType::kU8: return summarize_as<std::uint8_t>(bytes);
    case DType::kI8: return summarize_as<std::int8_t>(bytes);
    case DType::kI16: return summarize_as<std::int16_t>(bytes);
    case DType::kU16: return summarize_as<std::uint16_t>(bytes);
    case DType::kF16:
      return summarize_as<std::uint16_t>(bytes, [&table = half_table()](std::uint16_t v) { return double{table[v]}; });
    case DType::kBF16: return summarize_as<std::uint16_t>(bytes, bfloat16_value);
    case DType::kI32: return summarize_as<std::int32_t>(bytes);
    case DType::kU32: return summarize_as<std::uint32_t>(bytes);
    case DType::kF32:
    case DType::kC64: return summarize_as<float>(bytes);
    case DType::kF64: return summarize_as<double>(bytes);
    case DType::kI64: return summarize_as<std::int64_t>(bytes);
    case DType::kU64: return summarize_as<std::uint64_t>(bytes);
  }
  return {};
}

void fill_elements(DType dtype, std::span<std::byte> out, std::uint64_t element_bits) {
  if (element_bits == 0) {
    std::fill(out.begin(), out.end(), std::byte{0});
    return;
  }
  const std::size_t bytes = std::max(1u, bits(dtype) / 8);
  std::size_t filled = std::min(bytes, out.size());
  for (std::size_t i = 0; i < filled; ++i) out[i] = static_cast<std::byte>(element_bits >> (i % 8 * 8));
  for (std::size_t more = 0; filled < out.size(); filled += more) {  // doubles the filled part each time
    more = std::min(filled, out.size() - filled);
    std::copy_n(out.begin(), more, out.begin() + static_cast<std::ptrdiff_t>(filled));
  }
}

std::uint64_t lowest_bits(DType dtype) {
  const auto format = float_format(dtype);
  return format ? format->sign_mask() | format->max_finite() : 0;
}

}  // namespace reshard
