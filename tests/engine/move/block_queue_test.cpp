#include "reshard/engine/move/block_queue.h"

#include <map>
#include <set>

#include "support/catch.h"
#include "support/models.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

/// A program that has nothing but tensors.
struct Tensors {
  explicit Tensors(const std::vector<LogicalTensor>& list) {
    map.logical = list;
    for (std::uint32_t i = 0; i < list.size(); ++i) program.transfers.emplace_back().source = Reading{i};
  }
  BlockQueue queue(std::uint64_t block_bytes, unsigned workers) const {
    const ProgramMaps maps{&map};
    return {maps, program, whole_program(maps, program), {block_bytes, block_bytes}, workers};
  }

  reshard::SourceMap map;
  Program program;
};

TEST_CASE("Whatever the order in which workers ask, each block of each tensor is given once") {
  const std::uint64_t seed = GENERATE(from_range(seeds(300)));
  INFO("RESHARD_TEST_SEED=" << seed);
  Random random(seed);
  std::vector<LogicalTensor> list(pick(random, 0, 12));
  for (LogicalTensor& tensor : list) {
    tensor.dtype = DType::kBF16;
    for (std::uint64_t d = pick(random, 0, 3); d > 0; --d) tensor.shape.push_back(pick(random, 0, 9));
  }
  const Tensors tensors(list);
  const std::uint64_t block_bytes = pick(random, 1, 40);
  const auto workers = static_cast<unsigned>(pick(random, 1, 5));
  BlockQueue queue = tensors.queue(block_bytes, workers);
  std::vector<std::set<std::uint64_t>> given(list.size());
  std::set<unsigned> asking;
  for (unsigned worker = 0; worker < workers; ++worker) asking.insert(worker);
  while (!asking.empty()) {
    const unsigned worker = *std::next(asking.begin(), static_cast<long>(random() % asking.size()));
    std::vector<BlockQueue::Item> items;
    if (!queue.next(worker, items)) {
      asking.erase(worker);
      continue;
    }
    REQUIRE(items.size() == 1);
    const BlockQueue::Item& item = items.front();
    CHECK(given[item.transfer].insert(item.block).second);
    CHECK((item.at.box == BlockGrid(DType::kBF16, list[item.transfer].shape, block_bytes).block(item.block)));
  }
  for (std::size_t t = 0; t < list.size(); ++t)
    CHECK(given[t].size() == BlockGrid(DType::kBF16, list[t].shape, block_bytes).count());
}

TEST_CASE("Workers that ask in turn have about the same bytes, each one range of the program") {
  const Tensors tensors(std::vector<LogicalTensor>(10, {"t", DType::kU8, {1000}}));
  BlockQueue queue = tensors.queue(100, 4);
  std::map<unsigned, std::vector<std::uint64_t>> given;
  for (bool more = true; more;) {
    more = false;
    for (unsigned worker = 0; worker < 4; ++worker) {
      std::vector<BlockQueue::Item> items;
      if (!queue.next(worker, items)) continue;
      given[worker].push_back(items.front().transfer * 10 + items.front().block);
      more = true;
    }
  }
  for (unsigned worker = 0; worker < 4; ++worker) {
    REQUIRE(given[worker].size() == 25);
    CHECK(given[worker].front() == worker * 25ull);
    CHECK(given[worker].back() == worker * 25ull + 24);
  }
}

TEST_CASE("One worker alone does the work of all, and one huge tensor keeps all of them busy") {
  const Tensors tensors({{"t", DType::kU8, {100'000}}});
  BlockQueue queue = tensors.queue(100, 3);
  std::vector<BlockQueue::Item> items;
  std::uint64_t first = 0;
  while (first < 600 && queue.next(2, items)) ++first;
  CHECK(first == 600);  // its own third and half of another, at least
  std::uint64_t rest = 0;
  while (queue.next(0, items)) ++rest;
  CHECK(first + rest == 1000);
  CHECK_FALSE(queue.next(1, items));
}

}  // namespace
}  // namespace reshard::test
