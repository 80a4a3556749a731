// Casts of every value of the narrow dtypes, and of samples of the wide ones that hold every kind of rounding, held
// against an oracle.
#include <bit>
#include <cmath>
#include <random>

#include "tensor/cast/cast_support.h"

namespace reshard::test {
namespace {

constexpr std::uint64_t kSeed = 20240607;

Codes all_codes(DType dtype) {
  Codes codes(std::size_t{1} << bits(dtype));
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = i;
  return codes;
}

TEST_CASE("Every value of 8 and 16 bits is cast to every target as the oracle says") {
  for (const DTypeRow& from : kDTypes) {
    if (from.bits != 8 && from.bits != 16) continue;
    for (const DType to : kCastTargets) check_casts(from.dtype, all_codes(from.dtype), to);
  }
}

/// Float32s around everything where rounding to `to` changes: its values and the middles between them.
Codes float32_edges(DType to) {
  Codes codes;
  const auto add = [&](long double value) {
    const auto code = std::bit_cast<std::uint32_t>(static_cast<float>(value));
    for (const std::uint32_t near : {code - 1, code, code + 1}) {
      codes.push_back(near & 0x7FFFFFFFu);
      codes.push_back(near | 0x80000000u);
    }
  };
  const std::vector<long double> values = ascending_values(to);
  for (std::size_t i = 0; i + 1 < values.size(); ++i) {
    add(values[i]);
    add((values[i] + values[i + 1]) / 2);
  }
  add(values.back());
  return codes;
}

/// All exponents and signs, each with many mantissas: few bits set, few bits clear, random.
Codes float32_sample() {
  std::mt19937_64 random(kSeed);
  std::vector<std::uint32_t> mantissas;
  for (int i = 0; i <= 23; ++i)
    for (const std::uint32_t step : {0u, 1u, 0xFFFFFFFFu}) {
      mantissas.push_back((1u << i) + step);
      mantissas.push_back(0x7FFFFFu - (1u << i) + step);
      mantissas.push_back((3u << i) / 2 + step);
    }
  Codes codes;
  for (std::uint32_t top = 0; top < 512; ++top) {
    for (const std::uint32_t mantissa : mantissas) codes.push_back(top << 23 | (mantissa & 0x7FFFFF));
    for (int i = 0; i < 800; ++i) codes.push_back(top << 23 | (random() & 0x7FFFFF));
  }
  return codes;
}

TEST_CASE("Float32 values of all exponents are rounded to the narrow floats as the oracle says") {
  INFO("seed " << kSeed);
  const Codes sample = float32_sample();
  for (const DType to : {DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2}) {
    check_casts(DType::kF32, sample, to);
    check_casts(DType::kF32, float32_edges(to), to);
  }
  check_casts(DType::kF32, sample, DType::kF64);
}

/// Doubles a hair off the middles between neighbours: in float32 many would lie on the middle, and be rounded twice.
Codes float64_edges(DType to) {
  Codes codes;
  const auto add = [&](double value) {
    for (const double near : {value, std::nextafter(value, 0.0), std::nextafter(value, HUGE_VAL)}) {
      codes.push_back(std::bit_cast<std::uint64_t>(near));
      codes.push_back(std::bit_cast<std::uint64_t>(-near));
    }
  };
  const std::vector<long double> values = ascending_values(to);
  for (std::size_t i = 0; i + 1 < values.size(); ++i) add(static_cast<double>((values[i] + values[i + 1]) / 2));
  return codes;
}

TEST_CASE("Float64 values are rounded once") {
  INFO("seed " << kSeed);
  for (const DType to : {DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2})
    check_casts(DType::kF64, float64_edges(to), to);
  std::mt19937_64 random(kSeed);
  Codes codes = {0, std::uint64_t{1} << 63, 0x7FF0000000000000, 0xFFF0000000000000, 0x7FF0000000000001};
  for (const double edge :
       {0x1.FFFFFEFFFFFFFp127, 0x1.FFFFFFp127})  // the last that fits F32, and the first that does not
    codes.push_back(std::bit_cast<std::uint64_t>(edge));
  for (int i = 0; i < 100000; ++i) codes.push_back(random());
  for (int i = 0; i < 200000; ++i) {  // where float32 has values, and on both sides of its middles
    const std::uint64_t exponent = 1023 - 152 + random() % 282;
    const std::uint64_t mantissa = random() & 0xFFFFFFFFFFFFF;
    const std::uint64_t near_middle = (mantissa & ~std::uint64_t{0x1FFFFFFF}) + 0x10000000 + random() % 3 - 1;
    codes.push_back((random() & 1) << 63 | exponent << 52 | (i % 2 != 0 ? mantissa : near_middle));
  }
  for (const DType to : kCastTargets) check_casts(DType::kF64, codes, to);
}

TEST_CASE("Integers of 32 and 64 bits are rounded once") {
  INFO("seed " << kSeed);
  std::mt19937_64 random(kSeed);
  Codes codes = {0, 1, ~std::uint64_t{0}, std::uint64_t{1} << 63, (std::uint64_t{1} << 63) - 1};
  for (int bit = 0; bit < 64; ++bit)
    for (int i = 0; i < 200; ++i) {
      const std::uint64_t value = (std::uint64_t{1} << bit) + (random() & random() & ((std::uint64_t{1} << bit) - 1));
      for (const std::uint64_t near : {value - 1, value, value + 1, std::uint64_t{0} - value}) codes.push_back(near);
    }
  Codes low_halves = codes;
  for (std::uint64_t& code : low_halves) code &= 0xFFFFFFFF;
  for (const DType to : kCastTargets) {
    check_casts(DType::kI64, codes, to);
    check_casts(DType::kU64, codes, to);
    check_casts(DType::kI32, low_halves, to);
    check_casts(DType::kU32, low_halves, to);
  }
}

}  // namespace
}  // namespace reshard::test
