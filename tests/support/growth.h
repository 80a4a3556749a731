#pragma once

#include <time.h>

#include <algorithm>
#include <cstddef>
#include <limits>

namespace reshard::test {

inline double thread_cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// CPU time of this thread for an input of 10 * `few` items, in units of that for `few`: about 10 if it is in
/// proportion to the input, about 100 if it is to its square. Compare it with kMostGrowth.
/// \param few   items for which `work` takes milliseconds.
/// \param make  makes an input of the given number of items; not measured.
/// \param work  gets the input; the shortest of three runs counts.
template <typename Make, typename Work>
double growth(std::size_t few, Make&& make, Work&& work) {
  const auto seconds = [&](std::size_t count) {
    const auto input = make(count);
    double least = std::numeric_limits<double>::infinity();
    for (int run = 0; run < 3; ++run) {
      const double begin = thread_cpu_seconds();
      work(input);
      least = std::min(least, thread_cpu_seconds() - begin);
    }
    return least;
  };
  const double of_few = seconds(few);
  return seconds(10 * few) / of_few;
}

/// Between what is in proportion to the input, with caches that it outgrows, and its square.
inline constexpr double kMostGrowth = 40;

}  // namespace reshard::test
