// The speed of casts with each instruction set, in the cache and out of it, beside memcpy of as many bytes read and
// written. Build in release: cmake --build --preset release --target bench_cast
#include <benchmark/benchmark.h>

#include <cstring>
#include <random>
#include <vector>

#include "reshard/tensor/cast.h"
#include "reshard/tensor/simd.h"

namespace {

using reshard::DType;

constexpr std::size_t kCounts[] = {std::size_t{1} << 15, std::size_t{1} << 25};

/// Normally distributed like weights, as `dtype`.
std::vector<std::byte> weights(DType dtype, std::size_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<float> values(std::size_t{1} << 15);
  for (float& value : values) value = normal(random);
  std::vector<std::byte> bytes(count * bits(dtype) / 8);
  const auto block = std::as_bytes(std::span(values));
  for (std::size_t i = 0; i < count; i += values.size())
    cast_elements(DType::kF32, block, dtype,
                  std::span(bytes).subspan(i * bits(dtype) / 8, values.size() * bits(dtype) / 8),
                  reshard::Overflow::kSaturate);
  return bytes;
}

void cast(benchmark::State& state, DType from, DType to, const std::string& target, std::size_t count) {
  const std::vector<std::byte> in = weights(from, count);
  std::vector<std::byte> out(count * bits(to) / 8);
  reshard::use_simd_target(target);
  for (auto _ : state) {
    cast_elements(from, in, to, out, reshard::Overflow::kError);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations() * count));
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * (in.size() + out.size())));
}

/// `bytes` are read and as many written.
void copy(benchmark::State& state, std::size_t bytes) {
  const std::vector<std::byte> in(bytes, std::byte{1});
  std::vector<std::byte> out(bytes);
  for (auto _ : state) {
    std::memcpy(out.data(), in.data(), bytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * 2 * bytes));
}

}  // namespace

int main(int argc, char** argv) {
  const DType dtypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2};
  for (const std::size_t count : kCounts) {
    const std::string size = "/" + std::to_string(count);
    benchmark::RegisterBenchmark(("memcpy" + size + "x2B").c_str(), copy, 2 * count);
    for (const DType from : dtypes)
      for (const DType to : dtypes)
        for (const std::string& target : reshard::simd_targets())
          if (from != to)
            benchmark::RegisterBenchmark(
                (std::string(name(from)) + "_to_" + std::string(name(to)) + size + "/" + target).c_str(), cast, from,
                to, target, count);
    for (const DType to : {DType::kF32, DType::kBF16})
      benchmark::RegisterBenchmark(("F64_to_" + std::string(name(to)) + size + "/scalar").c_str(), cast, DType::kF64,
                                   to, "scalar", count);
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
