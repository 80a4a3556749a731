#include "reshard/tensor/cast/cast.h"

#include <array>
#include <bit>
#include <cmath>
#include <random>

#include "reshard/tensor/cast/cast_kernels.h"
#include "reshard/tensor/values/number.h"
#include "tensor/cast/cast_support.h"

namespace reshard::test {
namespace {

std::uint64_t f32(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

TEST_CASE("Floats of 8 bits and more are cast to the six targets, integers only on request") {
  for (const DTypeRow& to : kDTypes) {
    const bool is_target =
        std::find(std::begin(kCastTargets), std::end(kCastTargets), to.dtype) != std::end(kCastTargets);
    for (const DTypeRow& from : kDTypes) {
      INFO(from.name << " to " << to.name);
      const bool is_same = from.dtype == to.dtype;
      const bool is_float = from.kind == DTypeClass::kFloat && from.bits >= 8;
      const bool is_integer = from.kind != DTypeClass::kFloat && from.kind != DTypeClass::kComplex;
      CHECK(can_cast(from.dtype, to.dtype) == (is_same || (is_target && is_float)));
      CHECK(can_cast(from.dtype, to.dtype, Integers::kAllow) == (is_same || (is_target && (is_float || is_integer))));
    }
  }
}

/// Examples to check by hand; cast_oracle_test.cpp has them all.
TEST_CASE(
    "Casts round to the nearest even once, keep signs, saturate, and cut the payload of a NaN, which stays quiet") {
  struct Example {
    DType from;
    std::uint64_t code;
    DType to;
    std::uint64_t expected;
  };
  const Example examples[] = {
      {DType::kF32, f32(1 + 0x1p-8f), DType::kBF16, 0x3F80},
      {DType::kF32, f32(1 + 0x3p-8f), DType::kBF16, 0x3F82},
      {DType::kF32, f32(17.0f), DType::kF8E4M3, 0x58},  // between 16 and 18
      {DType::kF64, std::bit_cast<std::uint64_t>(1 + 0x1p-8 + 0x1p-40), DType::kBF16,
       0x3F81},  // no tie, as of a float32
      {DType::kF32, f32(-0x1p-24f), DType::kF16, 0x8001},
      {DType::kF32, f32(465.0f), DType::kF8E4M3, 0x7E},
      {DType::kF32, 0xFF800000, DType::kF8E4M3, 0xFE},
      {DType::kF32, 0xFF800000, DType::kF8E5M2, 0xFC},
      {DType::kF32, 0x7F800001, DType::kBF16, 0x7FC0},  // cut to nothing, it would be infinity
      {DType::kBF16, 0xFF81, DType::kF32, 0xFFC10000},
      {DType::kI64, 16777217, DType::kF32, f32(16777216)},
      {DType::kBool, 2, DType::kBF16, 0x3F80},
  };
  with_each_simd_target([&] {
    for (const Example& it : examples) {
      INFO(name(it.from) << " 0x" << std::hex << it.code << " to " << name(it.to));
      CHECK(cast_code(it.from, it.code, it.to) == it.expected);
    }
  });
}

struct Limit {
  DType to;
  float last_that_fits;
  float first_that_does_not;
};

constexpr Limit kLimits[] = {
    {DType::kF16, 0x1.FFDFFEp15f, 65520.0f},
    {DType::kBF16, 0x1.FEFFFEp127f, 0x1.FFp127f},
    {DType::kF8E4M3, 464.0f, 0x1.D00002p8f},  // the tie goes down: the mantissa of 448 is even
    {DType::kF8E5M2, 0x1.DFFFFEp15f, 61440.0f},
};

TEST_CASE("Vectors say that values overflow only if some do") {
  with_each_simd_target([] {
    for (const Limit& limit : kLimits) {
      const CastKernel kernel = simd_cast_kernel(DType::kF32, limit.to);
      if (!kernel) continue;  // scalar
      INFO(name(limit.to));
      const auto overflows = [&](float value) {
        const Bytes in = pack(DType::kF32, Codes(70, f32(value)));
        Bytes out(70 * bits(limit.to) / 8);
        return kernel(in.data(), 70, out.data());
      };
      CHECK(!overflows(limit.last_that_fits));
      CHECK(overflows(-limit.first_that_does_not));
      CHECK(!overflows(std::bit_cast<float>(0xFFFFFFFF)));
      CHECK(overflows(HUGE_VALF) == (limit.to == DType::kF8E4M3));
    }
  });
}

TEST_CASE("A significand is shifted to the nearest integer, ties to even, however far") {
  const std::uint64_t top = std::uint64_t{1} << 63;
  CHECK(shift_right_to_nearest_even(5, 1) == 2);
  CHECK(shift_right_to_nearest_even(7, 1) == 4);
  CHECK(shift_right_to_nearest_even(1, 1) == 0);
  CHECK(shift_right_to_nearest_even(3, 2) == 1);
  CHECK(shift_right_to_nearest_even(top, 64) == 0);
  CHECK(shift_right_to_nearest_even(top + 1, 64) == 1);
  CHECK(shift_right_to_nearest_even(top + 1, 65) == 0);
  CHECK(shift_right_to_nearest_even(~std::uint64_t{0}, 1000) == 0);
}

TEST_CASE("A cast to the same dtype copies the bytes of any dtype") {
  Bytes in(24);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::byte>(0xFF - 7 * i);
  for (const DTypeRow& row : kDTypes) {
    Bytes out(in.size());
    CHECK_FALSE(cast_elements(row.dtype, in, row.dtype, out, Overflow::kError));
    CHECK(out == in);
  }
  CHECK_FALSE(cast_elements(DType::kF4, {}, DType::kF4, {}, Overflow::kError));
}

TEST_CASE("The first value that overflows is found wherever it lies, and the output is as if saturated") {
  with_each_simd_target([] {
    for (std::size_t at = 0; at < 100; ++at) {
      Codes codes(100, f32(2));
      codes[at] = codes.back() = f32(-1e30f);
      const auto told = cast(DType::kF32, pack(DType::kF32, codes), DType::kF8E4M3, Overflow::kError);
      const auto saturated = cast(DType::kF32, pack(DType::kF32, codes), DType::kF8E4M3, Overflow::kSaturate);
      REQUIRE(told.first_overflow == at);
      REQUIRE(saturated.first_overflow == std::nullopt);
      REQUIRE(told.overflows == (at + 1 == codes.size() ? 1 : 2));
      REQUIRE(told.out == saturated.out);
      REQUIRE(code_at(DType::kF8E4M3, told.out, at) == 0xFE);
    }
  });
}

/// Casts `count` elements that begin `in_skew` and `out_skew` bytes off, and fails if a byte around the output changes.
Bytes cast_with_guards(DType from, const Bytes& in, std::size_t in_skew, std::size_t count, DType to,
                       std::size_t out_skew) {
  constexpr std::size_t kGuard = 64;
  const std::size_t in_bytes = count * bits(from) / 8;
  const std::size_t out_bytes = count * bits(to) / 8;
  // Of exactly the size, so that a sanitizer sees reads past the end.
  Bytes source(in_skew + in_bytes);
  std::copy_n(in.begin(), in_bytes, source.begin() + static_cast<std::ptrdiff_t>(in_skew));
  Bytes target(kGuard + out_skew + out_bytes + kGuard, std::byte{0xA5});
  const auto out = std::span(target).subspan(kGuard + out_skew, out_bytes);
  cast_elements(from, std::span(source).subspan(in_skew), to, out, Overflow::kSaturate);
  const Bytes result(out.begin(), out.end());
  std::fill(out.begin(), out.end(), std::byte{0xA5});
  if (target != Bytes(target.size(), std::byte{0xA5})) FAIL("a byte outside of the output was written");
  return result;
}

TEST_CASE("Zeros of either sign are counted, in each float of whole bytes, and no other values") {
  constexpr std::uint64_t kSeed = 11;
  INFO("seed " << kSeed);
  std::mt19937_64 random(kSeed);
  for (const DTypeRow& row : kDTypes) {
    const auto format = float_format(row.dtype);
    if (!format || row.bits < 8) continue;
    INFO(row.name);
    Codes codes;
    for (int i = 0; i < 1001; ++i) {
      const std::uint64_t small = random() % 3;  // 0, and the two smallest subnormals
      codes.push_back(i % 2 == 0 ? random() : small | (random() % 2 == 0 ? 0 : format->sign_mask()));
      if (row.bits < 64) codes.back() &= (std::uint64_t{1} << row.bits) - 1;
    }
    const Bytes in = pack(row.dtype, codes);
    std::uint64_t expected = 0;
    for (const std::uint64_t code : codes) {
      const Number number = number_of(row.dtype, code);
      if (number.kind == Number::Kind::kFinite && number.significand == 0) ++expected;
    }
    CHECK(expected > 50);
    CHECK(count_zeros(row.dtype, in) == expected);
    CHECK(count_zeros(row.dtype, {}) == 0);
  }
  CHECK(rounds_to_zero(DType::kF32, DType::kF16));
  CHECK(rounds_to_zero(DType::kBF16, DType::kF8E5M2));
  CHECK(rounds_to_zero(DType::kF64, DType::kF32));
  CHECK_FALSE(rounds_to_zero(DType::kF32, DType::kBF16));
  CHECK_FALSE(rounds_to_zero(DType::kF16, DType::kF32));
  CHECK_FALSE(rounds_to_zero(DType::kI32, DType::kF16));
}

TEST_CASE("Vectors give what the scalar cast gives, for every count and alignment, and write nothing else") {
  constexpr std::uint64_t kSeed = 97;
  constexpr std::size_t kCount = 131;
  INFO("seed " << kSeed);
  std::mt19937_64 random(kSeed);
  const DType vector_dtypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2};
  const std::array<std::size_t, 2> skews[] = {{0, 0}, {1, 0}, {0, 1}, {1, 3}, {2, 2}, {3, 1}, {5, 7}};
  const BestSimdTarget restore;
  for (const DType from : vector_dtypes)
    for (const DType to : vector_dtypes) {
      INFO(name(from) << " to " << name(to));
      Bytes in(kCount * bits(from) / 8);
      for (std::byte& byte : in) byte = static_cast<std::byte>(random());
      use_simd_target("scalar");
      const Bytes expected = cast(from, in, to, Overflow::kSaturate).out;
      for (const std::string& target : simd_targets()) {
        INFO(target);
        use_simd_target(target);
        for (std::size_t count = 0; count < kCount; ++count)
          for (const auto& [in_skew, out_skew] : skews) {
            const Bytes result = cast_with_guards(from, in, in_skew, count, to, out_skew);
            if (!std::equal(result.begin(), result.end(), expected.begin()))
              FAIL("count " << count << ", skews " << in_skew << " and " << out_skew);
          }
      }
    }
}

}  // namespace
}  // namespace reshard::test
