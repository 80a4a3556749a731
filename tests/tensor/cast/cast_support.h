// What the tests of casts share.
#pragma once

#include <cstring>
#include <vector>

#include "reshard/tensor/cast/cast.h"
#include "tensor/cast/cast_oracle.h"
#include "tensor/simd_support.h"

namespace reshard::test {

using Codes = std::vector<std::uint64_t>;

inline constexpr DType kCastTargets[] = {DType::kF64,  DType::kF32,    DType::kF16,
                                         DType::kBF16, DType::kF8E4M3, DType::kF8E5M2};

/// Elements of whole bytes; a sub-byte one takes one byte.
inline Bytes pack(DType dtype, const Codes& codes) {
  const std::size_t width = (bits(dtype) + 7) / 8;
  Bytes bytes(codes.size() * width);
  for (std::size_t i = 0; i < codes.size(); ++i) std::memcpy(bytes.data() + i * width, &codes[i], width);
  return bytes;
}

inline std::uint64_t code_at(DType dtype, const Bytes& bytes, std::size_t index) {
  const std::size_t width = bits(dtype) / 8;
  std::uint64_t code = 0;
  std::memcpy(&code, bytes.data() + index * width, width);
  return code;
}

struct CastResult {
  Bytes out;
  std::optional<std::size_t> first_overflow;
  std::uint64_t overflows = 0;
};

inline CastResult cast(DType from, const Bytes& in, DType to, Overflow overflow) {
  CastResult result{Bytes(in.size() / (bits(from) / 8) * (bits(to) / 8)), std::nullopt};
  if (const auto overflowed = cast_elements(from, in, to, result.out, overflow)) {
    result.first_overflow = overflowed->first;
    result.overflows = overflowed->count;
  }
  return result;
}

/// One value, saturated.
inline std::uint64_t cast_code(DType from, std::uint64_t code, DType to) {
  return code_at(to, cast(from, pack(from, {code}), to, Overflow::kSaturate).out, 0);
}

/// Casts `codes` with each instruction set and holds every result, and what overflowed first, against the oracle.
inline void check_casts(DType from, const Codes& codes, DType to) {
  INFO(name(from) << " to " << name(to));
  const CastOracle oracle(from, to);
  const Bytes in = pack(from, codes);
  Codes expected;
  std::optional<std::size_t> first_overflow;
  std::uint64_t overflows = 0;
  for (const std::uint64_t code : codes) {
    const Expected one = from == to ? Expected{code, false} : oracle.cast(code);
    if (one.overflow && overflows++ == 0) first_overflow = expected.size();
    expected.push_back(one.code);
  }
  const Bytes expected_bytes = pack(to, expected);
  const BestSimdTarget restore;
  for (const std::string& target : simd_targets()) {
    INFO(target);
    use_simd_target(target);
    for (const Overflow overflow : {Overflow::kSaturate, Overflow::kError}) {
      const CastResult result = cast(from, in, to, overflow);
      CHECK(result.first_overflow == (overflow == Overflow::kError ? first_overflow : std::nullopt));
      CHECK(result.overflows == (overflow == Overflow::kError ? overflows : 0));
      if (result.out == expected_bytes) continue;
      for (std::size_t i = 0; i < codes.size(); ++i) {
        INFO("source bits 0x" << std::hex << codes[i]);
        REQUIRE(code_at(to, result.out, i) == expected[i]);
      }
    }
  }
}

}  // namespace reshard::test
