#include "reshard/engine/move/write_back.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "support/catch.h"

namespace reshard::test {
namespace {

/// Counts what it is asked for.
class Counter final : public Sink {
 public:
  void write_at(std::uint64_t, std::span<const std::byte>) override {}
  void start_writeback(std::uint64_t offset_bytes, std::uint64_t size_bytes) override {
    ++started;
    on_the_way[offset_bytes] = offset_bytes + size_bytes;
  }
  /// As the kernel does it: for all that is on its way in the range, whoever has started it.
  void wait_for_writeback(std::uint64_t offset_bytes, std::uint64_t size_bytes) override {
    ++waited;
    std::erase_if(on_the_way, [&](const auto& range) {
      return range.second > offset_bytes && range.first < offset_bytes + size_bytes;
    });
  }
  void sync() override {}
  std::uint64_t on_the_way_bytes() const {
    std::uint64_t bytes = 0;
    for (const auto& [begin, end] : on_the_way) bytes += end - begin;
    return bytes;
  }
  std::map<std::uint64_t, std::uint64_t> on_the_way;  // begin, end
  std::uint64_t started = 0;
  std::uint64_t waited = 0;
};

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

std::vector<std::shared_ptr<Counter>> counters(std::size_t count) {
  std::vector<std::shared_ptr<Counter>> sinks(count);
  for (auto& sink : sinks) sink = std::make_shared<Counter>();
  return sinks;
}

/// Writes `total_bytes` to each of `files` files in steps, round robin. \returns the most bytes that at any time were
/// written and not begun to be written back.
std::uint64_t most_unstarted(std::size_t files, std::uint64_t total_bytes) {
  constexpr std::uint64_t kStepBytes = std::uint64_t{64} << 10;
  WriteBack write_back(files, 100);
  const auto sinks = counters(files);
  std::vector<std::uint64_t> unstarted(files, 0);
  std::uint64_t all = 0;
  std::uint64_t most = 0;
  for (std::uint64_t at = 0; at < total_bytes; at += kStepBytes)
    for (std::size_t i = 0; i < files; ++i) {
      const std::uint64_t started = sinks[i]->started;
      write_back.wrote(static_cast<std::uint32_t>(i), sinks[i], at, kStepBytes);
      unstarted[i] += kStepBytes;
      all += kStepBytes;
      if (sinks[i]->started > started) all -= std::exchange(unstarted[i], 0);
      most = std::max(most, all);
    }
  return most;
}

TEST_CASE("What is not yet on its way to the disk is bounded over all files") {
  CHECK(most_unstarted(1, 64 * kMiB) == WriteBack::kStartBytes - (std::uint64_t{64} << 10));
  for (const std::size_t files : {32, 300, 5000})
    CHECK(most_unstarted(files, 2048 * kMiB / files) <= WriteBack::kUnstartedBytes);
}

TEST_CASE("No more files than are allowed are kept open for what is on its way") {
  WriteBack write_back(5000, 100);
  const auto sinks = counters(5000);
  for (std::uint32_t i = 0; i < 5000; ++i) write_back.wrote(i, sinks[i], 0, std::uint64_t{256} << 10);
  CHECK(std::count_if(sinks.begin(), sinks.end(), [](const auto& sink) { return sink.use_count() > 1; }) == 100);
}

TEST_CASE("What is on its way is waited for beyond its bound, the oldest first") {
  WriteBack write_back(2, 1000);
  const auto first = std::make_shared<Counter>();
  const auto second = std::make_shared<Counter>();
  write_back.wrote(0, first, 0, 8 * kMiB);
  CHECK(first->started == 1);
  for (std::uint64_t begun = 8 * kMiB; begun < WriteBack::kOnTheWayBytes; begun += 8 * kMiB) {
    CHECK(first->waited == 0);
    write_back.wrote(1, second, begun, 8 * kMiB);
  }
  write_back.wrote(1, second, WriteBack::kOnTheWayBytes, 8 * kMiB);
  CHECK(first->waited == 1);
  CHECK(second->waited == 0);
  CHECK(first.use_count() == 1);
  write_back.clear();
  CHECK(second.use_count() == 1);
}

TEST_CASE("The disk always has as much on its way as is allowed, of one file as of many") {
  const std::uint32_t files = GENERATE(1u, 2u, 7u);
  CAPTURE(files);
  WriteBack write_back(files, 1000);
  const auto sinks = counters(files);
  std::uint64_t written = 0;
  for (std::uint64_t at = 0; at < 4 * WriteBack::kOnTheWayBytes / files; at += 4 * kMiB)
    for (std::uint32_t i = 0; i < files; ++i) {
      write_back.wrote(i, sinks[i], at, 4 * kMiB);
      written += 4 * kMiB;
      std::uint64_t on_the_way = 0;
      for (const auto& sink : sinks) on_the_way += sink->on_the_way_bytes();
      CHECK(on_the_way <= WriteBack::kOnTheWayBytes);
      CHECK(on_the_way + files * WriteBack::kStartBytes >= std::min(written, WriteBack::kOnTheWayBytes));
    }
}

}  // namespace
}  // namespace reshard::test
