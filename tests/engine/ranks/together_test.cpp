// Steps that ranks take together: what fails on one fails on all, with the same error, and nobody waits for ever.

#include "reshard/engine/ranks/together.h"

#include <algorithm>
#include <atomic>
#include <numeric>

#include "support/random.h"
#include "support/refusals.h"
#include "support/thread_ranks.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

using Work = std::function<void(Together&)>;

/// Runs `work` on `size` ranks, which must all throw one error, and compares that.
void check_agreed(std::uint32_t size, const Refusal& refusal, const Work& work) {
  check_error(agreed_error(run_ranks(size, work)), refusal);
}

/// Checks nothing but by throwing: the framework's checks are for one thread.
void hold(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

void step(Together& together, const std::string& name, const std::function<void()>& work) {
  Progress progress;
  together.step(name, progress, work);
}

TEST_CASE("All ranks go on after a step when each has done its work") {
  const std::uint32_t size = GENERATE(1u, 2u, 5u);
  std::atomic<std::uint32_t> done{0};
  check_none_threw(run_ranks(size, [&](Together& together) {
    step(together, "work", [&] { ++done; });
    hold(done == size, "a rank goes on before all are done");
  }));
}

TEST_CASE("Ranks know what each of them gave, and what rank 0 gave") {
  check_none_threw(run_ranks(4, [](Together& together) {
    hold(
        together.gather("letters", std::string(together.rank(), 'x')) == std::vector<std::string>{"", "x", "xx", "xxx"},
        "all letters");
    hold(together.from_leader("name", "of " + std::to_string(together.rank())) == "of 0", "rank 0's name");
    hold(together.process(3) == "rank 3 on n1", "the name of a process");
    hold(together.local_size() == 2, "ranks of a machine");
  }));
}

TEST_CASE("A failure of one rank is all ranks', and says whose it is and everything else") {
  check_agreed(
      3, {.what = "rank 2 on n1: a/b: line 3: at byte 7: tensor t: is odd", .hint = "mend it"}, [](Together& together) {
        step(together, "work", [&] {
          if (together.rank() == 2)
            throw Error(ErrorKind::kBadInput, "is odd").in("a/b").tensor("t").at_byte(7).at_line(3).hint("mend it");
        });
        throw std::logic_error("a rank went on");
      });
}

TEST_CASE("Of several failures the lowest rank's is told, and what all say alike without a rank") {
  check_agreed(4, {.kind = ErrorKind::kIo, .what = "rank 2 on n1: failed on 2"}, [](Together& together) {
    step(together, "work", [&] {
      if (together.rank() > 1) throw Error(ErrorKind::kIo, "failed on " + std::to_string(together.rank()));
    });
  });
  check_agreed(3, {.kind = ErrorKind::kUsage, .what = "makes no sense"}, [](Together& together) {
    step(together, "work", [] { throw Error(ErrorKind::kUsage, "makes no sense"); });
  });
}

TEST_CASE("A failure stops the others' work, which say nothing of it") {
  check_agreed(3, {.kind = ErrorKind::kNoSpace}, [](Together& together) {
    Progress progress;
    const RunOptions options{.progress = &progress};
    together.step("work", progress, [&] {
      if (together.rank() == 1) throw Error(ErrorKind::kNoSpace, "full");
      for (;;) throw_if_stopped(options);
    });
  });
}

TEST_CASE("A signal stops all ranks, and comes before other failures") {
  std::atomic<int> cleaned{0};
  check_agreed(3, {.kind = ErrorKind::kInterrupted}, [&](Together& together) {
    Progress progress;
    const auto work = [&] {
      if (together.rank() == 2) progress.stop = true;
      while (!progress.stop) std::this_thread::yield();
      if (together.rank() == 0) throw Error(ErrorKind::kIo, "its files are gone");
      throw_if_stopped({.progress = &progress});
    };
    // Others were stopped by rank 2, and clean up when all agreed.
    together.step("work", progress, work, [&] { cleaned += together.rank() == 2 ? 1 : 100; });
  });
  CHECK(cleaned == 1);
}

TEST_CASE("A signal after a rank's work is done cleans up before the others have answered") {
  std::atomic<bool> cleaned{false};
  check_none_threw(run_ranks(2, [&](Together& together) {
    Progress progress;
    const auto work = [&] {
      if (together.rank() == 1)
        while (!cleaned) std::this_thread::yield();
    };
    if (together.rank() == 0) progress.stop = true;
    together.step("work", progress, work, [&] { cleaned = true; });
  }));
  CHECK(cleaned);
}

TEST_CASE("What fails outside of a step fails on all ranks, whatever they are at") {
  const std::uint32_t failing = GENERATE(0u, 1u);
  const std::string rank = "rank " + std::to_string(failing) + " on n0: ";
  check_agreed(2, {.kind = ErrorKind::kUsage, .what = rank + "not an option"}, [&](Together& together) {
    if (together.rank() == failing) throw Error(ErrorKind::kUsage, "not an option");
    step(together, "plan", [] {});
  });
  check_agreed(2, {.kind = ErrorKind::kIo}, [&](Together& together) {
    step(together, "plan", [] {});
    if (together.rank() == failing) throw Error(ErrorKind::kIo, "gone");
    together.gather("letters", "x");
  });
  check_agreed(2, {.kind = ErrorKind::kInternal}, [&](Together& together) {
    step(together, "plan", [] {});
    if (together.rank() == failing) throw std::runtime_error("odd");
  });
}

TEST_CASE("Ranks that do different things are told so, and stop") {
  check_agreed(3, {.kind = ErrorKind::kUsage, .what = "rank 0 on n0 wants to plan, and rank 1 on n0 to verify"},
               [](Together& together) { step(together, together.rank() == 1 ? "verify" : "plan", [] {}); });
  check_agreed(3,
               {.kind = ErrorKind::kUsage,
                .what = "rank 0 on n0 wants to compare, and rank 2 on n1 to look for digests: --check-inputs besides"},
               [](Together& together) {
                 if (together.rank() == 2) together.set_given({{"--check-inputs", ""}});
                 step(together, together.rank() == 2 ? "look for digests" : "compare", [] {});
               });
  check_agreed(2, {.kind = ErrorKind::kUsage}, [](Together& together) {
    if (together.rank() == 0) step(together, "plan", [] {});
  });
}

TEST_CASE("When a rank dies the others give up after their time") {
  const std::uint32_t dying = GENERATE(0u, 2u);
  const auto work = [&](Together& together) {
    step(together, "plan", [] {});
    if (together.rank() == dying) throw Death();
    step(together, "copy", [] {});
  };
  const auto thrown = run_ranks(3, work, std::chrono::milliseconds(200));
  for (std::uint32_t rank = 0; rank < 3; ++rank)
    if (rank != dying) CHECK((thrown[rank] && thrown[rank]->kind() == ErrorKind::kLost));
}

TEST_CASE("Ranks' bytes are summed up for the progress bar") {
  check_none_threw(run_ranks(3, [](Together& together) {
    Progress progress;
    progress.done_bytes = 10ull * (together.rank() + 1);
    together.step("copy", progress, [] {});
    hold(progress.done_bytes + progress.others_bytes == 60, "the sum of all bytes");
  }));
}

TEST_CASE("Parts of a row of items are all of it, each once, and differ by the largest item at most") {
  const std::uint64_t seed = GENERATE(from_range(seeds(200)));
  INFO("RESHARD_TEST_SEED=" << seed);
  Random random(seed);
  std::vector<std::uint64_t> costs(pick(random, 0, 30));
  for (std::uint64_t& cost : costs) cost = pick(random, 0, 100);
  const std::uint64_t all = std::accumulate(costs.begin(), costs.end(), std::uint64_t{0});
  const std::uint64_t largest = costs.empty() ? 0 : *std::max_element(costs.begin(), costs.end());
  const auto size = static_cast<std::uint32_t>(pick(random, 1, 9));
  std::size_t next = 0;
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    const auto [first, last] = part_of(costs, rank, size);
    CHECK(first == next);
    CHECK(last >= first);
    next = last;
    const auto begin = costs.begin() + static_cast<std::ptrdiff_t>(first);
    const auto end = costs.begin() + static_cast<std::ptrdiff_t>(last);
    CHECK(std::accumulate(begin, end, std::uint64_t{0}) <= all / size + largest + size);
  }
  CHECK(next == costs.size());
}

}  // namespace
}  // namespace reshard::test
