// Lots: whatever is handed over from rank to rank, each is done once, and ranks that are done get of those that are not.

#include "reshard/engine/units/lots.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>
#include <tuple>

#include "engine/some_jobs.h"
#include "support/random.h"
#include "support/refusals.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

/// Lots of each share, without parts; one is known by the unit of its one part.
std::vector<Lot> lots_of(const std::vector<std::uint32_t>& counts, std::uint64_t lot_bytes) {
  std::vector<Lot> lots;
  for (std::uint32_t share = 0; share < counts.size(); ++share)
    for (std::uint32_t lot = 0; lot < counts[share]; ++lot)
      lots.push_back({share, lot_bytes, {{0, 0, 0, static_cast<std::uint32_t>(lots.size())}}});
  return lots;
}

/// A rank that does so many bytes from beat to beat.
struct SimulatedRank {
  Lots lots;
  std::uint64_t bytes_per_beat;
  std::uint64_t own_bytes;
  std::uint64_t begins_at = 1;      // beat
  std::uint64_t working_bytes = 0;  // left of what it has begun
  std::vector<std::uint32_t> taken = {};
  bool is_done = false;
};

constexpr double kBeatSeconds = 0.05;

struct Simulation {
  Simulation(std::vector<Lot> dealt, const std::vector<std::uint64_t>& speeds,
             const std::vector<std::uint64_t>& own_bytes)
      : lots(std::move(dealt)) {
    for (std::uint32_t rank = 0; rank < speeds.size(); ++rank)
      ranks.emplace_back(new SimulatedRank{Lots(rank), speeds[rank], own_bytes[rank]});
  }

  /// Does `can` bytes of what a rank can do from beat to beat.
  void work(SimulatedRank& rank, std::uint64_t can) const {
    while (can > 0) {
      if (rank.working_bytes == 0) {
        const Lot* lot = rank.lots.take();
        if (lot == nullptr) {
          rank.is_done = !rank.lots.wait(std::chrono::milliseconds(0));
          return;
        }
        rank.taken.push_back(lot->parts.front().unit);
        rank.working_bytes = lot->bytes;
        if (rank.working_bytes == 0) continue;
      }
      const std::uint64_t done = std::min(can, rank.working_bytes);
      rank.working_bytes -= done;
      rank.lots.did(done);
      can -= done;
    }
  }

  /// \param random  if given, ranks do some of their work between telling and hearing.
  /// \returns after how many beats all are done.
  std::uint64_t run(Random* random = nullptr) {
    for (std::uint64_t beat = 1; beat < 100000; ++beat) {
      std::vector<std::string> told;
      for (const auto& rank : ranks) {
        if (beat == rank->begins_at) {
          rank->lots.begin(rank->own_bytes, lots);
          rank->working_bytes = rank->own_bytes;
        }
        told.push_back(rank->lots.tell(kBeatSeconds * static_cast<double>(beat)));
      }
      std::vector<std::uint64_t> early(ranks.size());  // before it hears what others have told
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        if (random) early[i] = ranks[i]->bytes_per_beat * pick(*random, 0, 100) / 100;
        if (beat >= ranks[i]->begins_at) work(*ranks[i], early[i]);
      }
      for (const auto& rank : ranks) rank->lots.hear(told);
      std::size_t closed = 0;
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        if (beat >= ranks[i]->begins_at) work(*ranks[i], ranks[i]->bytes_per_beat - early[i]);
        // Of ranks that hold nothing, all wait for more, or none does.
        closed += ranks[i]->is_done ? 1 : 0;
      }
      if (closed == ranks.size()) return beat;
    }
    FAIL("the ranks do not end");
    return 0;
  }

  /// The lots that were taken, by all.
  std::vector<std::uint32_t> taken() const {
    std::vector<std::uint32_t> all;
    for (const auto& rank : ranks) all.insert(all.end(), rank->taken.begin(), rank->taken.end());
    std::sort(all.begin(), all.end());
    return all;
  }

  std::vector<Lot> lots;
  std::vector<std::unique_ptr<SimulatedRank>> ranks;
};

std::vector<std::uint32_t> numbers(std::size_t count, std::uint32_t first = 0) {
  std::vector<std::uint32_t> all(count);
  std::iota(all.begin(), all.end(), first);
  return all;
}

TEST_CASE("A rank reports its lots as one number after another") {
  Lots lots(0);
  lots.begin(5, lots_of({2, 0}, 3));
  const std::string told = lots.tell(1);
  CHECK(told == std::string({1, 0, 0, 0, 0, 0, 0, 0, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                             2, 0, 0, 0, 0, 0, 0, 0, 3,  0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  CHECK_FALSE(lots.hear({told, told}));
  for (std::size_t size = 0; size < told.size(); ++size)
    CHECK(error_of([&] { lots.hear({told.substr(0, size)}); }).kind() == ErrorKind::kBadInput);
}

TEST_CASE("A rank that is done gets lots of one that is slow, so that both end together") {
  Simulation simulation(lots_of({16, 16}, 125), {100, 70}, {6000, 6000});
  const std::uint64_t beats = simulation.run();
  // 16000 bytes at 170 a beat take 94 beats, and the slow rank alone would take 114 for its share.
  CHECK(beats <= 98);
  CHECK(simulation.ranks[0]->taken.size() > 16);
  CHECK(simulation.ranks[1]->taken.size() < 16);
  CHECK(simulation.taken() == numbers(32));
}

TEST_CASE("Ranks that are equally fast keep their lots") {
  Simulation simulation(lots_of({16, 16, 16}, 125), {100, 100, 100}, {6000, 6000, 6000});
  simulation.run();
  for (std::uint32_t rank = 0; rank < 3; ++rank) CHECK(simulation.ranks[rank]->taken == numbers(16, 16 * rank));
}

TEST_CASE("A rank that has nothing of its own gets lots, and does not keep others from getting some") {
  // Ranks 0 and 1 have nothing; ranks 0 and 2 cannot help each other at once, since one alone has lots.
  Simulation simulation(lots_of({0, 0, 32}, 500), {100, 100, 100}, {0, 0, 16000});
  const std::uint64_t beats = simulation.run();
  // Rank 2 would take 320 beats; its own part takes 160, in which the others do nearly all of the lots.
  CHECK(beats <= 175);
  CHECK(simulation.ranks[0]->taken.size() >= 10);
  CHECK(simulation.ranks[1]->taken.size() >= 10);
}

TEST_CASE("What a rank has waited for lots does not make it slow") {
  // Rank 1 is done at once, and rank 0 has more in lots than half of what there is to do when it begins with them.
  Simulation simulation(lots_of({32, 0}, 500), {100, 100}, {16000, 100});
  simulation.run();
  CHECK(simulation.ranks[1]->taken.size() >= 15);
}

TEST_CASE("Whatever the speeds and shares, each lot is taken once, and all ranks end") {
  for (const std::uint64_t seed : seeds(300)) {
    INFO("RESHARD_TEST_SEED=" << seed);
    Random random(seed);
    const auto count = static_cast<std::uint32_t>(pick(random, 2, 9));
    const std::uint64_t lot_bytes = pick(random, 0, 500);
    std::vector<std::uint32_t> lots;
    std::vector<std::uint64_t> speeds, own_bytes;
    for (std::uint32_t rank = 0; rank < count; ++rank) {
      lots.push_back(static_cast<std::uint32_t>(pick(random, 0, 32)));
      speeds.push_back(pick(random, 1, 300));
      own_bytes.push_back(pick(random, 0, 3) ? pick(random, 0, 20000) : 0);
    }
    Simulation simulation(lots_of(lots, lot_bytes), speeds, own_bytes);
    for (const auto& rank : simulation.ranks)
      if (pick(random, 0, 3) == 0) rank->begins_at = pick(random, 1, 200);
    simulation.run(&random);
    CHECK(simulation.taken() == numbers(simulation.lots.size()));
  }
}

TEST_CASE("Threads that take lots while others are handed over take each once") {
  constexpr std::uint32_t kRanks = 3;
  const std::vector<Lot> dealt = lots_of({200, 0, 7}, 10);
  std::vector<std::unique_ptr<Lots>> lots;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) lots.push_back(std::make_unique<Lots>(rank));
  std::mutex mutex;
  std::vector<std::uint32_t> taken;
  std::vector<std::thread> threads;
  for (std::uint32_t thread = 0; thread < 2 * kRanks; ++thread)
    threads.emplace_back([&, thread] {
      Lots& mine = *lots[thread / 2];
      if (thread % 2 == 0) mine.begin(0, dealt);
      while (true) {
        const Lot* lot = mine.take();
        if (lot == nullptr && thread % 2 == 0 && !mine.wait()) return;
        if (lot == nullptr && thread % 2 == 1) return;  // one thread of each rank stays to the end
        if (lot == nullptr) continue;
        mine.did(lot->bytes);
        const std::lock_guard lock(mutex);
        taken.push_back(lot->parts.front().unit);
      }
    });
  for (std::uint64_t beat = 1; beat < 2000; ++beat) {
    std::vector<std::string> told;
    for (const auto& one : lots) told.push_back(one->tell(1e-4 * static_cast<double>(beat)));
    for (const auto& one : lots) one->hear(told);
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  for (std::thread& thread : threads) thread.join();
  std::sort(taken.begin(), taken.end());
  CHECK(taken == numbers(dealt.size()));
}

TEST_CASE("Nobody ends before a rank that has not begun has its lots done") {
  const std::vector<Lot> dealt = lots_of({4, 4}, 100);
  Lots early(0), late(1);
  early.begin(100, dealt);
  double seconds = 0;
  const auto beat = [&] {
    seconds += 1;
    const std::vector<std::string> told{early.tell(seconds), late.tell(seconds)};
    early.hear(told);
    late.hear(told);
  };
  beat();
  while (early.take() != nullptr) {
  }
  early.did(500);
  beat();
  beat();
  CHECK(early.wait());
  late.begin(100, dealt);
  beat();
  beat();
  const Lot* lot = early.take();
  REQUIRE(lot != nullptr);  // of the other one, which has done nothing yet
  CHECK(lot->share == 1);
  while (early.take() != nullptr) {
  }
  while (late.take() != nullptr) {
  }
  beat();
  CHECK_FALSE(early.wait());
  CHECK_FALSE(late.wait());
}

TEST_CASE("Handing over what does not exist is an error, and changes nothing") {
  Lots few(0), many(0), other(1);
  few.begin(10, lots_of({0, 1}, 10));
  many.begin(10, lots_of({4, 0}, 10));
  other.begin(0, lots_of({4, 0}, 10));
  many.did(1);
  (void)many.tell(1);
  std::vector<std::string> told{many.tell(100), other.tell(100)};
  CHECK(many.hear(told));  // whose lots `few` does not have
  told = {many.tell(101), other.tell(101)};
  check_refused([&] { few.hear(told); }, {.says = "hands over units that do not exist"});
  CHECK(few.take() == nullptr);
  other.hear(told);
  CHECK(other.take() != nullptr);
}

TEST_CASE("Shares and their lots are all of what is missing, each unit once, of each share the last quarter in lots") {
  const Jobs jobs;
  for (const auto& [what, plan] : jobs.planners) {
    const auto job = plan(jobs.output);
    for (const std::uint64_t seed : seeds(20)) {
      INFO(what << ", RESHARD_TEST_SEED=" << seed);
      Random random(seed);
      const Units units(job->maps(), job->program, static_cast<std::uint32_t>(pick(random, 1, 300)), false, 0.5);
      std::vector<std::uint32_t> missing;
      for (std::uint32_t unit = 0; unit < units.count(); ++unit)
        if (pick(random, 0, 4)) missing.push_back(unit);
      const auto count = static_cast<std::uint32_t>(pick(random, 1, 7));
      const auto most_lots = pick(random, 0, 32);
      const Shares shares = deal_shares(job->maps(), job->program, units, missing, count, most_lots);
      REQUIRE(shares.own.size() == count);
      std::vector<Part> expected, dealt;
      for (const std::uint32_t unit : missing) units.add_parts(unit, expected);
      std::size_t lot = 0;
      for (std::uint32_t share = 0; share < count; ++share) {
        dealt.insert(dealt.end(), shares.own[share].begin(), shares.own[share].end());
        const std::size_t first = lot;
        for (; lot < shares.lots.size() && shares.lots[lot].share == share; ++lot) {
          const Lot& one = shares.lots[lot];
          CHECK(one.bytes == bytes_of(job->maps(), job->program, one.parts));
          dealt.insert(dealt.end(), one.parts.begin(), one.parts.end());
        }
        // A unit may be empty, and then no part says that it was dealt.
        if (most_lots == 0) CHECK(lot == first);
        CHECK(lot - first <= most_lots);
      }
      CHECK(lot == shares.lots.size());
      const auto same = [](const Part& a, const Part& b) {
        return std::tie(a.transfer, a.begin_row, a.end_row, a.unit) ==
               std::tie(b.transfer, b.begin_row, b.end_row, b.unit);
      };
      CHECK(std::equal(dealt.begin(), dealt.end(), expected.begin(), expected.end(), same));
    }
  }
}

}  // namespace
}  // namespace reshard::test
