#include "reshard/tensor/cast/compare.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstring>

#include "reshard/tensor/cast/cast.h"
#include "reshard/tensor/cast/numeric.h"
#include "reshard/tensor/values/number.h"

namespace reshard {
namespace {

/// Number of parts that are compared at a time; a complex element has two parts. A whole number of bytes in any dtype.
constexpr std::size_t kBlockParts = 1024;

struct Side {
  DType dtype;  // of one part
  const std::byte* bytes;

  std::uint64_t code(std::size_t part) const { return element_code(dtype, bytes, part); }
};

DType part_dtype(DType dtype) {
  return dtype == DType::kC64 ? DType::kF32 : dtype;
}

bool is_integer(DType dtype) {
  const DTypeClass kind = describe(dtype).kind;
  return kind == DTypeClass::kSigned || kind == DTypeClass::kUnsigned;
}

/// Whether some values of `dtype` are not exact as doubles.
bool is_wide(DType dtype) {
  return is_integer(dtype) && bits(dtype) == 64;
}

using Values = std::array<double, kBlockParts>;

void read_values(const Side& side, std::size_t begin, std::size_t count, Values& values) {
  const std::uint32_t width = bits(side.dtype);
  if (width < 8) {
    for (std::size_t i = 0; i < count; ++i)
      values[i] = small_float_value(side.dtype, static_cast<std::uint8_t>(side.code(begin + i)));
    return;
  }
  const std::span in(side.bytes + begin * (width / 8), count * (width / 8));
  if (width <= 32 && can_cast(side.dtype, DType::kF32)) {  // faster, and just as exact
    std::array<float, kBlockParts> narrow;
    const auto out = std::as_writable_bytes(std::span(narrow).first(count));
    cast_elements(side.dtype, in, DType::kF32, out, Overflow::kSaturate);
    std::copy_n(narrow.begin(), count, values.begin());
    return;
  }
  cast_elements(side.dtype, in, DType::kF64, std::as_writable_bytes(std::span(values).first(count)),
                Overflow::kSaturate);
}

/// Exact if the difference fits in 64 bits, which always holds for equal signs.
double integer_difference(const Number& a, const Number& b) {
  if (a.negative != b.negative) return static_cast<double>(a.significand) + static_cast<double>(b.significand);
  return static_cast<double>(std::max(a.significand, b.significand) - std::min(a.significand, b.significand));
}

/// `a` and `b` must be finite.
bool same_value(const Number& a, const Number& b) {
  if (a.significand == 0 || b.significand == 0) return a.significand == b.significand;
  const int a_zeros = std::countr_zero(a.significand);
  const int b_zeros = std::countr_zero(b.significand);
  return a.negative == b.negative && a.significand >> a_zeros == b.significand >> b_zeros &&
         a.exponent + a_zeros == b.exponent + b_zeros;
}

class Comparison {
 public:
  Comparison(Side a, Side b, std::size_t parts_per_element, std::optional<Tolerance> tolerance, std::size_t keep_first)
      : a_(a),
        b_(b),
        parts_per_element_(parts_per_element),
        tolerance_(tolerance.value_or(Tolerance{})),
        keep_first_(keep_first),
        bitwise_(!tolerance && a.dtype == b.dtype),
        wide_(is_wide(a.dtype) || is_wide(b.dtype)) {}

  void compare_block(std::size_t begin, std::size_t count) {
    read_values(a_, begin, count, a_values_);
    read_values(b_, begin, count, b_values_);
    for (std::size_t i = 0; i < count; ++i)
      if (!equal(begin + i, a_values_[i], b_values_[i]))
        note((begin + i) / parts_per_element_, a_values_[i], b_values_[i]);
  }

  DifferenceSummary& summary() { return summary_; }

 private:
  /// Also updates the largest difference.
  bool equal(std::size_t part, double a, double b) {
    if (bitwise_ && a_.code(part) == b_.code(part)) return true;
    if (a == b && !bitwise_ && !wide_) return true;
    double difference = std::fabs(a - b);
    if (wide_ && is_integer(a_.dtype) && is_integer(b_.dtype))
      difference = integer_difference(number_of(a_.dtype, a_.code(part)), number_of(b_.dtype, b_.code(part)));
    // false for NaN, including the difference of two equal infinities
    if (difference > summary_.max_abs_difference) summary_.max_abs_difference = difference;
    if (bitwise_) return false;
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
    if (std::isinf(a) || std::isinf(b)) return a == b;
    if (!tolerance_.is_zero()) return difference <= tolerance_.absolute + tolerance_.relative * std::fabs(b);
    return wide_ && same_value(number_of(a_.dtype, a_.code(part)), number_of(b_.dtype, b_.code(part)));
  }

  void note(std::size_t element, double a, double b) {
    if (summary_.differing != 0 && last_noted_ == element) return;  // the other part of the same element
    last_noted_ = element;
    ++summary_.differing;
    if (summary_.first.size() < keep_first_) summary_.first.push_back({element, a, b});
  }

  Side a_;
  Side b_;
  std::size_t parts_per_element_;
  Tolerance tolerance_;
  std::size_t keep_first_;
  bool bitwise_;
  bool wide_;  // some values are not exact as doubles
  DifferenceSummary summary_;
  std::size_t last_noted_ = 0;
  Values a_values_;
  Values b_values_;
};

}  // namespace

bool can_compare(DType a_dtype, DType b_dtype) {
  if (a_dtype == b_dtype) return true;
  return can_cast(a_dtype, DType::kF64, Integers::kAllow) && can_cast(b_dtype, DType::kF64, Integers::kAllow);
}

DifferenceSummary compare_elements(DType a_dtype, std::span<const std::byte> a, DType b_dtype,
                                   std::span<const std::byte> b, std::optional<Tolerance> tolerance,
                                   std::size_t keep_first) {
  assert(can_compare(a_dtype, b_dtype));
  const bool same_dtype = a_dtype == b_dtype;
  if (a.empty() || (same_dtype && std::memcmp(a.data(), b.data(), a.size()) == 0)) return {};
  const Side a_side{part_dtype(a_dtype), a.data()};
  const Side b_side{part_dtype(b_dtype), b.data()};
  const std::size_t parts = a.size() * 8 / bits(a_side.dtype);
  assert(parts == b.size() * 8 / bits(b_side.dtype));
  Comparison comparison(a_side, b_side, a_dtype == DType::kC64 ? 2 : 1, tolerance, keep_first);
  for (std::size_t begin = 0; begin < parts; begin += kBlockParts) {
    const std::size_t count = std::min(kBlockParts, parts - begin);
    const std::size_t begin_bytes = begin * bits(a_side.dtype) / 8;
    const std::size_t bytes = count * bits(a_side.dtype) / 8;
    if (same_dtype && std::memcmp(a.data() + begin_bytes, b.data() + begin_bytes, bytes) == 0) continue;
    comparison.compare_block(begin, count);
  }
  return std::move(comparison.summary());
}

}  // namespace reshard
