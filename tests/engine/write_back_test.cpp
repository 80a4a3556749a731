#include "reshard/engine/write_back.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "support/catch.h"

namespace reshard::test {
namespace {

/// Counts what it is asked for.
class Counter final : public Sink {
 public:
  void write_at(std::uint64_t, std::span<const std::byte>) override {}
  void start_writeback() override { ++started; }
  void wait_for_writeback() override { ++waited; }
  void sync() override {}
  std::uint64_t started = 0;
  std::uint64_t waited = 0;
};

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

/// Writes `total_bytes` to each of `files` files in steps, round robin. \returns the most bytes that at any time were
/// written and not begun to be written back.
std::uint64_t most_unstarted(std::size_t files, std::uint64_t total_bytes) {
  constexpr std::uint64_t kStepBytes = std::uint64_t{64} << 10;
  WriteBack write_back(files, 100);
  std::vector<std::shared_ptr<Counter>> sinks;
  for (std::size_t i = 0; i < files; ++i) sinks.push_back(std::make_shared<Counter>());
  std::vector<std::uint64_t> unstarted(files, 0);
  std::uint64_t all = 0;
  std::uint64_t most = 0;
  for (std::uint64_t at = 0; at < total_bytes; at += kStepBytes)
    for (std::size_t i = 0; i < files; ++i) {
      const std::uint64_t started = sinks[i]->started;
      write_back.wrote(static_cast<std::uint32_t>(i), sinks[i], kStepBytes);
      unstarted[i] += kStepBytes;
      all += kStepBytes;
      if (sinks[i]->started > started) all -= std::exchange(unstarted[i], 0);
      most = std::max(most, all);
    }
  return most;
}

TEST_CASE("What is not yet on its way to the disk is bounded over all files") {
  CHECK(most_unstarted(1, 64 * kMiB) == WriteBack::kStartBytes - (std::uint64_t{64} << 10));
  for (const std::size_t files : {32, 300, 5000}) {
    INFO(files);
    CHECK(most_unstarted(files, 2048 * kMiB / files) <= WriteBack::kUnstartedBytes);
  }
}

TEST_CASE("No more files than are allowed are kept open for what is on its way") {
  WriteBack write_back(5000, 100);
  std::vector<std::shared_ptr<Counter>> sinks;
  for (std::uint32_t i = 0; i < 5000; ++i) {
    sinks.push_back(std::make_shared<Counter>());
    write_back.wrote(i, sinks.back(), std::uint64_t{256} << 10);
  }
  CHECK(std::count_if(sinks.begin(), sinks.end(), [](const auto& sink) { return sink.use_count() > 1; }) == 100);
}

TEST_CASE("What is on its way is waited for beyond its bound, the oldest first") {
  WriteBack write_back(2, 1000);
  const auto first = std::make_shared<Counter>();
  const auto second = std::make_shared<Counter>();
  write_back.wrote(0, first, 8 * kMiB);
  CHECK(first->started == 1);
  for (std::uint64_t begun = 8 * kMiB; begun < WriteBack::kOnTheWayBytes; begun += 8 * kMiB) {
    CHECK(first->waited == 0);
    write_back.wrote(1, second, 8 * kMiB);
  }
  write_back.wrote(1, second, 8 * kMiB);
  CHECK(first->waited == 1);
  CHECK(second->waited == 0);
  CHECK(first.use_count() == 1);
  write_back.clear();
  CHECK(second.use_count() == 1);
}

}  // namespace
}  // namespace reshard::test
