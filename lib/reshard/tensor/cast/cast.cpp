#include "reshard/tensor/cast/cast.h"

#include <cassert>
#include <cstring>

#include "reshard/tensor/cast/cast_kernels.h"
#include "reshard/tensor/values/float_format.h"

namespace reshard {

std::optional<Overflowed> cast_elements(DType from, std::span<const std::byte> in, DType to, std::span<std::byte> out,
                                        Overflow overflow) {
  assert(can_cast(from, to, Integers::kAllow));
  if (from == to) {
    assert(in.size() == out.size());
    if (!in.empty()) std::memcpy(out.data(), in.data(), in.size());
    return std::nullopt;
  }
  const std::size_t from_bytes = bits(from) / 8;
  const std::size_t count = in.size() / from_bytes;
  assert(in.size() == count * from_bytes && out.size() == count * (bits(to) / 8));
  const CastKernel kernel = simd_cast_kernel(from, to);
  if (kernel && (!kernel(in.data(), count, out.data()) || overflow == Overflow::kSaturate)) return std::nullopt;
  // After an overflow in a vector, finds and counts the elements; writes the same bytes again.
  const Overflowed found = cast_scalar(from, in.data(), count, to, out.data());
  if (overflow == Overflow::kSaturate || found.count == 0) return std::nullopt;
  return found;
}

namespace {

template <typename Code>
std::uint64_t count_zeros_of(const FloatFormat& format, std::span<const std::byte> elements) {
  std::uint64_t magnitude_mask = format.sign_mask() - 1;
  if (format.specials == FloatSpecials::kNegativeZeroNan) magnitude_mask |= format.sign_mask();  // -0 is a NaN
  const auto magnitude = static_cast<Code>(magnitude_mask);
  std::uint64_t zeros = 0;
  for (std::size_t at = 0; at + sizeof(Code) <= elements.size(); at += sizeof(Code)) {
    Code code;
    std::memcpy(&code, elements.data() + at, sizeof(Code));
    zeros += (code & magnitude) == 0 ? 1 : 0;
  }
  return zeros;
}

}  // namespace

bool rounds_to_zero(DType from, DType to) {
  const auto source = float_format(from), target = float_format(to);
  return source && target && target->exponent_bits < source->exponent_bits;
}

std::uint64_t count_zeros(DType dtype, std::span<const std::byte> elements) {
  const FloatFormat format = *float_format(dtype);
  switch (bits(dtype)) {
    case 8: return count_zeros_of<std::uint8_t>(format, elements);
    case 16: return count_zeros_of<std::uint16_t>(format, elements);
    case 32: return count_zeros_of<std::uint32_t>(format, elements);
    default: return count_zeros_of<std::uint64_t>(format, elements);
  }
}

}  // namespace reshard
