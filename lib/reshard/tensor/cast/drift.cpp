#include "reshard/tensor/cast/drift.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "reshard/tensor/cast/cast.h"

namespace reshard {
namespace {

constexpr std::size_t kChunkElems = 512;
using Chunk = std::array<double, kChunkElems>;

void read_chunk(DType dtype, std::span<const std::byte> bytes, std::size_t count, Chunk& values) {
  cast_elements(dtype, bytes, DType::kF64, std::as_writable_bytes(std::span(values).first(count)), Overflow::kSaturate);
}

bool same_value(double a, double b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

}  // namespace

bool can_drift(DType dtype) {
  return dtype == DType::kBF16;
}

std::optional<std::uint64_t> ReplicaDistance::add(DType dtype, std::span<const std::byte> a,
                                                  std::span<const std::byte> b) {
  const std::size_t width = bits(dtype) / 8;
  Chunk a_values, b_values;
  std::optional<std::uint64_t> first;
  for (std::size_t at = 0; at < a.size(); at += kChunkElems * width) {
    const std::size_t bytes = std::min(kChunkElems * width, a.size() - at);
    const std::size_t count = bytes / width;
    read_chunk(dtype, a.subspan(at, bytes), count, a_values);
    read_chunk(dtype, b.subspan(at, bytes), count, b_values);
    elems_ += count;
    for (std::size_t i = 0; i < count; ++i) {
      const double x = a_values[i], y = b_values[i];
      if (same_value(x, y)) {
        if (!std::isfinite(x)) continue;
        a_squares_ += x * x;
        b_squares_ += x * x;
        continue;
      }
      ++differing_;
      if (!first) first = at / width + i;
      if (!std::isfinite(x) || !std::isfinite(y)) {
        max_abs_ = max_element_ = squares_ = std::numeric_limits<double>::infinity();
        continue;
      }
      const double difference = std::fabs(x - y);
      a_squares_ += x * x;
      b_squares_ += y * y;
      squares_ += difference * difference;
      max_abs_ = std::max(max_abs_, difference);
      max_element_ = std::max(max_element_, difference / std::max(std::fabs(x), std::fabs(y)));
    }
  }
  return first;
}

double ReplicaDistance::relative() const {
  if (squares_ == 0) return 0;
  return std::sqrt(squares_ / std::max(a_squares_, b_squares_));
}

bool ReplicaDistance::is_drift() const {
  if (differing_ == 0) return true;
  const double mean_square = std::max(a_squares_, b_squares_) / static_cast<double>(elems_);
  const bool near = max_abs_ < kMaxElement * std::sqrt(mean_square) || max_element_ < kMaxElement;
  return near && relative() < kMaxRelative;
}

}  // namespace reshard
