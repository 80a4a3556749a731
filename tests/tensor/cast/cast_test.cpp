#include "reshard/tensor/cast/cast.h"

#include <array>
#include <bit>
#include <cmath>
#include <random>

#include "reshard/tensor/cast/cast_kernels.h"
#include "reshard/tensor/values/number.h"
#include "support/errors.h"
#include "tensor/cast/cast_support.h"

namespace reshard::test {
namespace {

std::uint64_t f32(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

std::optional<std::size_t> overflow_of(DType from, const Codes& codes, DType to) {
  return cast(from, pack(from, codes), to, Overflow::kError).first_overflow;
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

TEST_CASE("Ties go to the even mantissa") {
  with_each_simd_target([] {
    CHECK(cast_code(DType::kF32, f32(1 + 0x1p-8f), DType::kBF16) == 0x3F80);
    CHECK(cast_code(DType::kF32, f32(1 + 0x3p-8f), DType::kBF16) == 0x3F82);
    CHECK(cast_code(DType::kF32, f32(1 + 0x1p-8f + 0x1p-23f), DType::kBF16) == 0x3F81);
    CHECK(cast_code(DType::kF32, f32(1 + 0x1p-11f), DType::kF16) == 0x3C00);
    CHECK(cast_code(DType::kF32, f32(1 + 0x3p-11f), DType::kF16) == 0x3C02);
    CHECK(cast_code(DType::kF32, f32(17.0f), DType::kF8E4M3) == 0x58);  // between 16 and 18
    CHECK(cast_code(DType::kF32, f32(19.0f), DType::kF8E4M3) == 0x5A);  // between 18 and 20
    CHECK(cast_code(DType::kF32, f32(9.0f), DType::kF8E5M2) == 0x48);   // between 8 and 10
    CHECK(cast_code(DType::kF32, f32(11.0f), DType::kF8E5M2) == 0x4A);  // between 10 and 12
  });
}

TEST_CASE("A double is not rounded to float32 on its way to a narrower float") {
  const double above_tie = 1 + 0x1p-8 + 0x1p-40;  // as a float32 it would be the tie, which goes down
  CHECK(cast_code(DType::kF64, std::bit_cast<std::uint64_t>(above_tie), DType::kBF16) == 0x3F81);
  const double below_tie = 1 + 0x3p-8 - 0x1p-40;  // as a float32 it would be the tie, which goes up
  CHECK(cast_code(DType::kF64, std::bit_cast<std::uint64_t>(below_tie), DType::kBF16) == 0x3F81);
  CHECK(cast_code(DType::kF64, std::bit_cast<std::uint64_t>(1 + 0x1p-11 + 0x1p-40), DType::kF16) == 0x3C01);
  CHECK(cast_code(DType::kF64, std::bit_cast<std::uint64_t>(17 + 0x1p-40), DType::kF8E4M3) == 0x59);
  CHECK(cast_code(DType::kF64, std::bit_cast<std::uint64_t>(9 + 0x1p-40), DType::kF8E5M2) == 0x49);
}

struct Limit {
  DType to;
  float last_that_fits;  // rounded to the largest finite value
  float first_that_does_not;
  std::uint64_t largest;
};

constexpr Limit kLimits[] = {
    {DType::kF16, 0x1.FFDFFEp15f, 65520.0f, 0x7BFF},
    {DType::kBF16, 0x1.FEFFFEp127f, 0x1.FFp127f, 0x7F7F},
    {DType::kF8E4M3, 464.0f, 0x1.D00002p8f, 0x7E},  // the tie goes down: the mantissa of 448 is even
    {DType::kF8E5M2, 0x1.DFFFFEp15f, 61440.0f, 0x7B},
};

TEST_CASE("What is beyond the largest finite value after rounding saturates or is told") {
  with_each_simd_target([] {
    for (const Limit& limit : kLimits) {
      INFO(name(limit.to));
      const std::uint64_t sign = std::uint64_t{1} << (bits(limit.to) - 1);
      CHECK(cast_code(DType::kF32, f32(limit.last_that_fits), limit.to) == limit.largest);
      CHECK(cast_code(DType::kF32, f32(limit.first_that_does_not), limit.to) == limit.largest);
      CHECK(cast_code(DType::kF32, f32(-limit.first_that_does_not), limit.to) == (limit.largest | sign));
      CHECK(cast_code(DType::kF32, f32(0x1.FFFFFEp127f), limit.to) == limit.largest);
      CHECK(overflow_of(DType::kF32, {f32(limit.last_that_fits), f32(-limit.last_that_fits)}, limit.to) ==
            std::nullopt);
      CHECK(overflow_of(DType::kF32, {f32(1), f32(limit.first_that_does_not)}, limit.to) == 1);
      CHECK(overflow_of(DType::kF32, {f32(1), f32(1), f32(-limit.first_that_does_not)}, limit.to) == 2);
    }
  });
  CHECK(overflow_of(DType::kF64, {std::bit_cast<std::uint64_t>(0x1.FFFFFEFFFFFFFp127)}, DType::kF32) == std::nullopt);
  CHECK(overflow_of(DType::kF64, {std::bit_cast<std::uint64_t>(0x1.FFFFFFp127)}, DType::kF32) == 0);
}

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

TEST_CASE("Infinities stay, but for F8_E4M3 they overflow") {
  const std::uint64_t plus = 0x7F800000;
  const std::uint64_t minus = 0xFF800000;
  with_each_simd_target([&] {
    CHECK(cast_code(DType::kF32, plus, DType::kF16) == 0x7C00);
    CHECK(cast_code(DType::kF32, minus, DType::kF16) == 0xFC00);
    CHECK(cast_code(DType::kF32, minus, DType::kBF16) == 0xFF80);
    CHECK(cast_code(DType::kF32, minus, DType::kF8E5M2) == 0xFC);
    CHECK(cast_code(DType::kF8E5M2, 0xFC, DType::kF32) == minus);
    CHECK(cast_code(DType::kF16, 0x7C00, DType::kF32) == plus);
    for (const DType to : {DType::kF16, DType::kBF16, DType::kF8E5M2, DType::kF64})
      CHECK(overflow_of(DType::kF32, {plus, minus}, to) == std::nullopt);
    CHECK(cast_code(DType::kF32, plus, DType::kF8E4M3) == 0x7E);
    CHECK(cast_code(DType::kF32, minus, DType::kF8E4M3) == 0xFE);
    CHECK(overflow_of(DType::kF32, {0, plus}, DType::kF8E4M3) == 1);
    CHECK(overflow_of(DType::kF16, {0, 0, 0xFC00}, DType::kF8E4M3) == 2);
  });
}

TEST_CASE("NaN becomes a quiet NaN of the same sign, its payload cut, and does not overflow") {
  with_each_simd_target([] {
    CHECK(cast_code(DType::kF32, 0x7F800001, DType::kBF16) == 0x7FC0);  // cut to nothing, it would be infinity
    CHECK(cast_code(DType::kF32, 0xFF800001, DType::kF16) == 0xFE00);
    CHECK(cast_code(DType::kF32, 0x7FC12000, DType::kF16) == 0x7E09);
    CHECK(cast_code(DType::kF32, 0xFFA00000, DType::kF8E5M2) == 0xFF);
    CHECK(cast_code(DType::kF32, 0x7FFFFFFF, DType::kF8E4M3) == 0x7F);
    CHECK(cast_code(DType::kF32, 0xFF800001, DType::kF8E4M3) == 0xFF);
    CHECK(cast_code(DType::kBF16, 0x7F81, DType::kF32) == 0x7FC10000);
    CHECK(cast_code(DType::kF16, 0xFC01, DType::kF32) == 0xFFC02000);
    CHECK(cast_code(DType::kF8E5M2, 0x7D, DType::kBF16) == 0x7FE0);
    CHECK(cast_code(DType::kF8E4M3, 0xFF, DType::kF32) == 0xFFF00000);
    CHECK(overflow_of(DType::kF32, {0x7FFFFFFF, 0xFF800001}, DType::kF8E4M3) == std::nullopt);
    CHECK(overflow_of(DType::kF32, {0x7FFFFFFF, 0xFF800001}, DType::kF16) == std::nullopt);
  });
  CHECK(cast_code(DType::kF64, 0x7FF0000000000001, DType::kF32) == 0x7FC00000);
  CHECK(cast_code(DType::kF8E4M3FNUZ, 0x80, DType::kF16) == 0x7E00);
  CHECK(cast_code(DType::kF8E8M0, 0xFF, DType::kBF16) == 0x7FC0);
}

TEST_CASE("Subnormals are not flushed, and zeros keep their sign") {
  with_each_simd_target([] {
    CHECK(cast_code(DType::kF32, f32(0x1p-24f), DType::kF16) == 0x0001);
    CHECK(cast_code(DType::kF32, f32(-0x1.8p-24f), DType::kF16) == 0x8002);
    CHECK(cast_code(DType::kF32, f32(0x1p-25f), DType::kF16) == 0x0000);
    CHECK(cast_code(DType::kF32, f32(0x1.000002p-25f), DType::kF16) == 0x0001);
    CHECK(cast_code(DType::kF32, f32(0x1.FFFFFEp-15f), DType::kF16) == 0x0400);  // up to the smallest normal number
    CHECK(cast_code(DType::kF32, 0x00010000, DType::kBF16) == 0x0001);
    CHECK(cast_code(DType::kF32, 0x00018000, DType::kBF16) == 0x0002);
    CHECK(cast_code(DType::kF32, f32(0x1p-9f), DType::kF8E4M3) == 0x01);
    CHECK(cast_code(DType::kF32, f32(0x1p-16f), DType::kF8E5M2) == 0x01);
    CHECK(cast_code(DType::kBF16, 0x0001, DType::kF32) == 0x00010000);
    CHECK(cast_code(DType::kF16, 0x8001, DType::kF32) == f32(-0x1p-24f));
    CHECK(cast_code(DType::kF8E4M3, 0x81, DType::kF32) == f32(-0x1p-9f));
    for (const DType to : {DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2}) {
      CHECK(cast_code(DType::kF32, 0x80000000, to) == std::uint64_t{1} << (bits(to) - 1));
      CHECK(cast_code(DType::kF32, 0x80000001, to) == std::uint64_t{1} << (bits(to) - 1));
      CHECK(cast_code(to, std::uint64_t{1} << (bits(to) - 1), DType::kF32) == 0x80000000);
    }
  });
}

TEST_CASE("Integers are cast by value, and BOOL is 0 or 1") {
  CHECK(cast_code(DType::kI8, 0x80, DType::kF32) == f32(-128));
  CHECK(cast_code(DType::kI64, 16777217, DType::kF32) == f32(16777216));
  CHECK(cast_code(DType::kU64, 0xFFFFFFFFFFFFFFFF, DType::kF32) == f32(0x1p64f));
  CHECK(cast_code(DType::kU16, 65535, DType::kF16) == 0x7BFF);
  CHECK(overflow_of(DType::kU16, {65519, 65520}, DType::kF16) == 1);
  CHECK(cast_code(DType::kBool, 1, DType::kBF16) == 0x3F80);
  CHECK(cast_code(DType::kBool, 2, DType::kBF16) == 0x3F80);
  CHECK(cast_code(DType::kBool, 0, DType::kBF16) == 0);
}

TEST_CASE("A cast to the same dtype copies the bytes of any dtype") {
  Bytes in(24);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::byte>(0xFF - 7 * i);
  for (const DTypeRow& row : kDTypes) {
    Bytes out(in.size());
    CHECK(cast_elements(row.dtype, in, row.dtype, out, Overflow::kError) == std::nullopt);
    CHECK(out == in);
  }
  CHECK(cast_elements(DType::kF4, {}, DType::kF4, {}, Overflow::kError) == std::nullopt);
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
