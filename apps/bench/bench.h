// Shared by all benchmarks. Each file registers its own; main.cpp runs them.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <vector>

namespace reshard::bench {

using Bytes = std::vector<std::byte>;

void register_casts();
void register_checksums();
void register_copies();
void register_transposes();

inline Bytes some_bytes(std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 2654435761u >> 11);
  return bytes;
}

/// Returns the processor seconds that `work` takes, regardless of other processes.
template <typename Work>
double seconds_of(Work&& work) {
  const std::clock_t begin = std::clock();
  work();
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

/// Returns the bytes per second that memcpy copies, as the median of several runs.
inline double memcpy_speed(std::size_t bytes) {
  const Bytes from(bytes, std::byte{1});
  Bytes to(bytes);
  const std::size_t times = std::max<std::size_t>(1, (std::size_t{16} << 20) / bytes);
  std::array<double, 5> speeds{};
  for (double& speed : speeds)
    speed = static_cast<double>(bytes * times) / seconds_of([&] {
              for (std::size_t i = 0; i < times; ++i) {
                std::memcpy(to.data(), from.data(), bytes);
                benchmark::ClobberMemory();
              }
            });
  std::nth_element(speeds.begin(), speeds.begin() + 2, speeds.end());
  return speeds[2];
}

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
