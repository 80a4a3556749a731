#include "reshard/io/read_each.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

#include "support/catch.h"

namespace reshard::test {
namespace {

TEST_CASE("Results of reads come in the order of their numbers, each with its own failure") {
  for (const std::size_t count : {0, 1, 3, 4, 100}) {
    CAPTURE(count);
    auto results = read_each(count, [](std::size_t number) {
      if (number % 3 == 2) throw std::runtime_error(std::to_string(number));
      return std::to_string(number);
    });
    REQUIRE(results.size() == count);
    for (std::size_t i = 0; i < count; ++i)
      if (i % 3 == 2)
        CHECK_THROWS_WITH(results[i].get(), std::to_string(i));
      else
        CHECK(results[i].get() == std::to_string(i));
  }
}

TEST_CASE("Few reads are made by the caller's own thread") {
  for (auto& thread : read_each(kMinParallelReads - 1, [](std::size_t) { return std::this_thread::get_id(); }))
    CHECK(thread.get() == std::this_thread::get_id());
}

TEST_CASE("Many reads are made at once, on a limited number of threads") {
  std::mutex mutex;
  std::size_t running = 0, most = 0;
  read_each(64, [&](std::size_t) {
    {
      const std::lock_guard lock(mutex);
      most = std::max(most, ++running);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const std::lock_guard lock(mutex);
    --running;
    return 0;
  });
  CHECK(most > 1);
  CHECK(most <= kMaxReaders);
}

}  // namespace
}  // namespace reshard::test
