// Lots: whatever is handed from rank to rank, each is taken once, and ranks that are done get of those that are not.

#include "reshard/engine/lots.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "support/catch.h"
#include "support/random.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

/// Shares without parts; a lot is known by the unit of its one part.
Shares shares_of(std::uint32_t count, std::uint64_t own_bytes, std::uint32_t lots, std::uint64_t lot_bytes) {
  Shares shares;
  shares.own.resize(count);
  shares.own_bytes.assign(count, own_bytes);
  for (std::uint32_t share = 0; share < count; ++share) {
    shares.first_lots.push_back(shares.lots.size());
    for (std::uint32_t lot = 0; lot < lots; ++lot) {
      shares.lots.push_back({{0, 0, 0, static_cast<std::uint32_t>(shares.lots.size())}});
      shares.lot_bytes.push_back(lot_bytes);
    }
  }
  shares.first_lots.push_back(shares.lots.size());
  return shares;
}

/// A rank that moves so many bytes in each beat.
struct SimulatedRank {
  Lots lots;
  std::uint64_t bytes_per_beat;
  std::uint64_t working_bytes;  // of what it has begun
  std::uint64_t moved_bytes = 0;
  std::vector<std::uint32_t> taken = {};
  bool is_done = false;
};

constexpr double kBeatSeconds = 0.05;

/// Moves as much as it can until the next beat.
void work(SimulatedRank& rank, std::uint64_t lot_bytes) {
  std::uint64_t can = rank.bytes_per_beat;
  while (can > 0) {
    if (rank.working_bytes == 0) {
      const auto* lot = rank.lots.take();
      if (lot == nullptr) {
        rank.is_done = !rank.lots.wait();
        return;
      }
      rank.taken.push_back(lot->front().unit);
      rank.working_bytes = lot_bytes;
    }
    const std::uint64_t moved = std::min(can, rank.working_bytes);
    rank.working_bytes -= moved;
    rank.moved_bytes += moved;
    can -= moved;
  }
}

/// \returns after how many beats all are done.
std::uint64_t run_all(std::vector<std::unique_ptr<SimulatedRank>>& ranks, std::uint64_t lot_bytes) {
  for (std::uint64_t beat = 1; beat < 100000; ++beat) {
    std::vector<std::string> told;
    for (const auto& rank : ranks)
      told.push_back(rank->lots.tell(rank->moved_bytes, kBeatSeconds * static_cast<double>(beat)));
    for (const auto& rank : ranks) rank->lots.hear(told);
    for (const auto& rank : ranks) work(*rank, lot_bytes);
    if (std::all_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank->is_done; })) return beat;
  }
  FAIL("the ranks do not end");
  return 0;
}

std::vector<std::unique_ptr<SimulatedRank>> ranks_of(const Shares& shares, const std::vector<std::uint64_t>& speeds) {
  std::vector<std::unique_ptr<SimulatedRank>> ranks;
  for (std::uint32_t rank = 0; rank < speeds.size(); ++rank) {
    ranks.emplace_back(new SimulatedRank{Lots(rank, true), speeds[rank], shares.own_bytes[rank]});
    ranks.back()->lots.begin(shares);
  }
  return ranks;
}

TEST_CASE("A rank that is done gets lots of one that is slow, so that both end together") {
  const Shares shares = shares_of(2, 6000, 16, 125);  // 8000 bytes each
  auto ranks = ranks_of(shares, {100, 70});
  const std::uint64_t beats = run_all(ranks, 125);
  // 16000 bytes at 170 a beat take 94 beats, and the slow rank alone would take 114 for its share.
  CHECK(beats <= 100);
  CHECK(ranks[0]->taken.size() > 16);
  CHECK(ranks[1]->taken.size() < 16);
}

TEST_CASE("Ranks that are equally fast keep their lots") {
  const Shares shares = shares_of(3, 6000, 16, 125);
  auto ranks = ranks_of(shares, {100, 100, 100});
  run_all(ranks, 125);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    std::vector<std::uint32_t> own(16);
    std::iota(own.begin(), own.end(), 16 * rank);
    CHECK(ranks[rank]->taken == own);
  }
}

TEST_CASE("Whatever the speeds, each lot is taken once, and all ranks end at the same beat") {
  for (const std::uint64_t seed : seeds(200)) {
    INFO("RESHARD_TEST_SEED=" << seed);
    Random random(seed);
    const auto count = static_cast<std::uint32_t>(pick(random, 2, 9));
    const auto lots = static_cast<std::uint32_t>(pick(random, 0, 32));
    const std::uint64_t lot_bytes = pick(random, 1, 500);
    const Shares shares = shares_of(count, pick(random, 0, 20000), lots, lot_bytes);
    std::vector<std::uint64_t> speeds;
    for (std::uint32_t rank = 0; rank < count; ++rank) speeds.push_back(pick(random, 1, 300));
    auto ranks = ranks_of(shares, speeds);
    run_all(ranks, lot_bytes);
    std::vector<std::uint32_t> taken;
    for (const auto& rank : ranks) taken.insert(taken.end(), rank->taken.begin(), rank->taken.end());
    std::sort(taken.begin(), taken.end());
    std::vector<std::uint32_t> all(shares.lots.size());
    std::iota(all.begin(), all.end(), 0);
    CHECK(taken == all);
  }
}

TEST_CASE("Nobody ends before a rank that has not begun has its lots done") {
  const Shares shares = shares_of(2, 100, 4, 100);
  Lots early(0, true), late(1, true);
  early.begin(shares);
  while (early.take() != nullptr) {
  }
  const auto beat = [&] {
    const std::vector<std::string> told{early.tell(500, 1), late.tell(0, 1)};
    early.hear(told);
    late.hear(told);
  };
  beat();
  CHECK(early.wait());
  late.begin(shares);
  beat();
  beat();
  CHECK(early.take() != nullptr);  // of the other one, which has moved nothing
  while (early.take() != nullptr) {
  }
  while (late.take() != nullptr) {
  }
  beat();
  CHECK_FALSE(early.wait());
  CHECK_FALSE(late.wait());
}

TEST_CASE("Lots that are not exchanged are a rank's own, and then there are no more") {
  Lots lots(1, false);
  lots.begin(shares_of(2, 100, 3, 10));
  for (const std::uint32_t unit : {3u, 4u, 5u}) {
    const auto* lot = lots.take();
    REQUIRE(lot != nullptr);
    CHECK(lot->front().unit == unit);
  }
  CHECK(lots.take() == nullptr);
  CHECK_FALSE(lots.wait());
}

}  // namespace
}  // namespace reshard::test
