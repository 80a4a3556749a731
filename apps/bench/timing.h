// Timing that does not depend on the load of the machine more than it must.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <vector>

namespace reshard::bench {

using Bytes = std::vector<std::byte>;

inline Bytes some_bytes(std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 2654435761u >> 11);
  return bytes;
}

/// Makes the compiler assume that all memory has been read and written.
inline void clobber_memory() {
  asm volatile("" : : : "memory");
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
                clobber_memory();
              }
            });
  std::nth_element(speeds.begin(), speeds.begin() + 2, speeds.end());
  return speeds[2];
}

}  // namespace reshard::bench
