// Shared by all benchmarks. Each file registers its own; main.cpp runs them.
#pragma once

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>

#include "timing.h"

namespace reshard::bench {

void register_casts();
void register_checksums();
void register_copies();
void register_transposes();

/// Times `work`, which moves `bytes`. The counter `memcpys` is its time in units of a memcpy of as many bytes, which is
/// timed just before since the machine's load varies.
template <typename Work>
void measure(benchmark::State& state, std::size_t bytes, Work&& work) {
  const double best = memcpy_speed(bytes);
  work();
  const double seconds = seconds_of([&] {
    for (auto _ : state) {
      work();
      benchmark::ClobberMemory();
    }
  });
  const auto moved = static_cast<double>(state.iterations()) * static_cast<double>(bytes);
  state.SetBytesProcessed(static_cast<std::int64_t>(moved));
  state.counters["memcpys"] = seconds * best / moved;
}

}  // namespace reshard::bench
