#include "reshard/engine/parallel.h"

#include <atomic>
#include <stdexcept>
#include <vector>

#include "support/catch.h"

namespace reshard::test {
TEST_CASE("Every number is worked on once, however many threads there are") {
  for (const std::size_t threads : {0, 1, 2, 3, 7, 16})
    for (const std::size_t count : {0, 1, 2, 5, 16, 17, 1000}) {
      CAPTURE(threads, count);
      std::vector<std::atomic<int>> calls(count);
      for_each_number(count, threads, [&](std::size_t number) { ++calls.at(number); });
      for (const auto& call : calls) CHECK(call == 1);
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
  CHECK_THROWS_WITH(for_each_number(1000, 4, work), "three");
}

}  // namespace reshard::test
