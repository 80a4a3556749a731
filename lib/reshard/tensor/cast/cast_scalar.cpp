#include <array>
#include <utility>

#include "reshard/tensor/cast/cast.h"
#include "reshard/tensor/cast/cast_kernels.h"
#include "reshard/tensor/values/number.h"

namespace reshard {
namespace {

using ScalarCast = Overflowed (*)(const std::byte* in, std::size_t count, std::byte* out);

/// number_of(kFrom, code), with the format of a float as a constant.
template <DType kFrom>
Number number_of_code(std::uint64_t code) {
  constexpr std::optional<FloatFormat> kFormat = float_format(kFrom);
  if constexpr (kFormat.has_value()) return float_number(*kFormat, code);
  return number_of(kFrom, code);
}

template <DType kFrom, DType kTo>
Overflowed cast_all(const std::byte* in, std::size_t count, std::byte* out) {
  constexpr std::size_t kFromBytes = bits(kFrom) / 8;
  constexpr std::size_t kToBytes = bits(kTo) / 8;
  constexpr FloatFormat kFormat = *float_format(kTo);
  Overflowed found;
  for (std::size_t i = 0; i < count; ++i) {
    bool overflowed = false;
    const std::uint64_t code =
        float_code(kFormat, number_of_code<kFrom>(load_code<kFromBytes>(in + i * kFromBytes)), overflowed);
    std::memcpy(out + i * kToBytes, &code, kToBytes);
    if (overflowed && found.count++ == 0) found.first = i;
  }
  return found;
}

template <DType kFrom, DType kTo>
constexpr ScalarCast cast_between() {
  if constexpr (kFrom != kTo && can_cast(kFrom, kTo, Integers::kAllow)) return &cast_all<kFrom, kTo>;
  return nullptr;
}

constexpr std::size_t kCount = std::size(kDTypes);

template <std::size_t... kPair>
constexpr std::array<ScalarCast, sizeof...(kPair)> all_casts(std::index_sequence<kPair...>) {
  return {cast_between<kDTypes[kPair / kCount].dtype, kDTypes[kPair % kCount].dtype>()...};
}

/// One function per pair of dtypes, indexed by both.
constexpr auto kCasts = all_casts(std::make_index_sequence<kCount * kCount>());

}  // namespace

Overflowed cast_scalar(DType from, const std::byte* in, std::size_t count, DType to, std::byte* out) {
  return kCasts[static_cast<std::size_t>(from) * kCount + static_cast<std::size_t>(to)](in, count, out);
}

}  // namespace reshard
