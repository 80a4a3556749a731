#include "reshard/tensor/cast/cast.h"

#include <cassert>
#include <cstring>

#include "reshard/tensor/cast/cast_kernels.h"

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

}  // namespace reshard
