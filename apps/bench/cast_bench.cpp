// Speed of casts with each instruction set, in the cache and out of it, compared with a memcpy of half as many bytes as
// are read and written.
#include <fmt/format.h>

#include <random>
#include <span>
#include <string>

#include "bench.h"
#include "reshard/tensor/cast/cast.h"
#include "reshard/tensor/values/simd.h"

namespace reshard::bench {
namespace {

constexpr std::size_t kCounts[] = {std::size_t{1} << 15, std::size_t{1} << 25};

/// Returns elements of `dtype` that are normally distributed, like weights.
Bytes weights(DType dtype, std::size_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<float> values(std::size_t{1} << 15);
  for (float& value : values) value = normal(random);
  Bytes bytes(count * bits(dtype) / 8);
  const auto block = std::as_bytes(std::span(values));
  for (std::size_t i = 0; i < count; i += values.size())
    cast_elements(DType::kF32, block, dtype,
                  std::span(bytes).subspan(i * bits(dtype) / 8, values.size() * bits(dtype) / 8), Overflow::kSaturate);
  return bytes;
}

void cast(benchmark::State& state, DType from, DType to, const std::string& target, std::size_t count) {
  const Bytes in = weights(from, count);
  Bytes out(count * bits(to) / 8);
  use_simd_target(target);
  measure(state, (in.size() + out.size()) / 2, [&] { cast_elements(from, in, to, out, Overflow::kError); });
  state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations() * count));
}

}  // namespace

void register_casts() {
  const DType dtypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2};
  for (const std::size_t count : kCounts) {
    const auto add = [&](DType from, DType to, const std::string& target) {
      const std::string title = std::string(name(from)) + "_to_" + std::string(name(to));
      benchmark::RegisterBenchmark(fmt::format("cast/{}/{}/{}", title, count, target).c_str(), cast, from, to, target,
                                   count);
    };
    for (const DType from : dtypes)
      for (const DType to : dtypes)
        for (const std::string& target : simd_targets())
          if (from != to) add(from, to, target);
    for (const DType to : {DType::kF32, DType::kBF16}) add(DType::kF64, to, "scalar");
  }
}

}  // namespace reshard::bench
