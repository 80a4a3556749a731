#include "reshard/io/parallel.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "support/catch.h"

namespace reshard::test {
TEST_CASE("Every number is worked on once, however many threads there are") {
  for (const std::size_t threads : {0, 1, 2, 3, 7, 16})
    for (const std::size_t count : {0, 1, 2, 5, 16, 17, 1000}) {
      CAPTURE(count, threads);
      std::vector<std::atomic<int>> calls(count);
      for_each_number(count, threads, [&](std::size_t number) { ++calls.at(number); });
      CHECK(std::all_of(calls.begin(), calls.end(), [](const auto& call) { return call == 1; }));
    }
}

TEST_CASE("After a failure no more work is begun, and the failure is told") {
  std::atomic<int> calls = 0;
  const auto work = [&](std::size_t number) {
    ++calls;
    if (number == 3) throw std::runtime_error("three");
  };
  CHECK_THROWS_WITH(for_each_number(1000, 1, work), "three");
  CHECK(calls == 4);
  calls = 0;
  const auto slow_work = [&](std::size_t number) {
    if (++calls == 3) throw std::runtime_error("three");
    std::this_thread::sleep_for(std::chrono::milliseconds(number % 7));
  };
  CHECK_THROWS_WITH(for_each_number(1000, 4, slow_work), "three");
  CHECK(calls < 100);
}

TEST_CASE("Work that goes on at the same time is far apart") {
  std::vector<std::size_t> order;
  std::mutex mutex;
  for_each_number(103, 4, [&](std::size_t number) {
    const std::lock_guard lock(mutex);
    order.push_back(number);
  });
  REQUIRE(order.size() == 103);
  std::size_t near = 0;
  for (std::size_t i = 1; i < order.size(); ++i) {
    const auto [low, high] = std::minmax(order[i - 1], order[i]);
    near += high - low < 20 ? 1 : 0;
  }
  CHECK(near < order.size() / 4);  // with neighbours one after the other it would be all
}

}  // namespace reshard::test
