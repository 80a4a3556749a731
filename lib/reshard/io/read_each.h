#pragma once

#include <cstddef>
#include <future>
#include <type_traits>
#include <vector>

#include "reshard/io/parallel.h"

namespace reshard {

/// Enough to hide the latency of a network file system. Each thread has one file open at a time.
inline constexpr std::size_t kMaxReaders = 8;
/// Below this number of files, threads do not pay off.
inline constexpr std::size_t kMinParallelReads = 4;

/// Calls `read` with each number below `count`, on up to kMaxReaders threads, and waits for all calls. `read` must be
/// thread-safe.
/// \returns the results or exceptions of the calls, in order. A caller that gets them in this order always reports the
///          same error: that of the first number that failed.
template <typename Read>
auto read_each(std::size_t count, const Read& read) {
  using Result = std::invoke_result_t<const Read&, std::size_t>;
  std::vector<std::packaged_task<Result(std::size_t)>> calls;
  std::vector<std::future<Result>> results;
  calls.reserve(count);
  results.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    calls.emplace_back([&read](std::size_t number) { return read(number); });
    results.push_back(calls.back().get_future());
  }
  for_each_number(count, count < kMinParallelReads ? 1 : kMaxReaders,
                  [&](std::size_t number) { calls[number](number); });
  return results;
}

}  // namespace reshard
