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

/// What all ranks threw, which has to be one error.
Error agreed_error(std::uint32_t size, const Work& work) {
  const auto thrown = run_ranks(size, work);
  for (const auto& one : thrown) {
    REQUIRE(one);
    CHECK(one->kind() == thrown[0]->kind());
    CHECK(std::string(one->what()) == thrown[0]->what());
    CHECK(one->hint() == thrown[0]->hint());
  }
  return *thrown[0];
}

/// Checks nothing but by throwing: the framework's checks are for one thread.
void hold(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

void check_none_threw(const std::vector<std::optional<Error>>& thrown) {
  for (const auto& one : thrown) CHECK((one ? std::string(one->what()) : "") == "");
}

void step(Together& together, const std::string& name, const std::function<void()>& work) {
  Progress progress;
  together.step(name, progress, work);
}

TEST_CASE("All ranks go on after a step when each has done its work") {
  for (const std::uint32_t size : {1u, 2u, 5u}) {
    std::atomic<std::uint32_t> done{0};
    const auto thrown = run_ranks(size, [&](Together& together) {
      step(together, "work", [&] { ++done; });
      hold(done == size, "a rank goes on before all are done");
    });
    check_none_threw(thrown);
  }
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
  const Error error = agreed_error(3, [](Together& together) {
    step(together, "work", [&] {
      if (together.rank() == 2)
        throw Error(ErrorKind::kBadInput, "is odd").in("a/b").tensor("t").at_byte(7).at_line(3).hint("mend it");
    });
    throw std::logic_error("a rank went on");
  });
  CHECK(error.kind() == ErrorKind::kBadInput);
  CHECK(std::string(error.what()) == "rank 2 on n1: a/b: line 3: at byte 7: tensor t: is odd");
  CHECK(error.hint() == "mend it");
}

TEST_CASE("Of several failures the lowest rank's is told, and what all say alike without a rank") {
  const Error lowest = agreed_error(4, [](Together& together) {
    step(together, "work", [&] {
      if (together.rank() > 1) throw Error(ErrorKind::kIo, "failed on " + std::to_string(together.rank()));
    });
  });
  CHECK(std::string(lowest.what()) == "rank 2 on n1: failed on 2");
  const Error alike = agreed_error(
      3, [](Together& together) { step(together, "work", [] { throw Error(ErrorKind::kUsage, "makes no sense"); }); });
  CHECK(std::string(alike.what()) == "makes no sense");
}

TEST_CASE("A failure stops the others' work, which say nothing of it") {
  check_error(agreed_error(3,
                           [](Together& together) {
                             Progress progress;
                             RunOptions options;
                             options.progress = &progress;
                             together.step("work", progress, [&] {
                               if (together.rank() == 1) throw Error(ErrorKind::kNoSpace, "full");
                               for (;;) throw_if_stopped(options);
                             });
                           }),
              {.kind = ErrorKind::kNoSpace});
}

TEST_CASE("A signal stops all ranks, and comes before other failures") {
  std::atomic<int> cleaned{0};
  const Error error = agreed_error(3, [&](Together& together) {
    Progress progress;
    RunOptions options;
    options.progress = &progress;
    const auto work = [&] {
      if (together.rank() == 2) progress.stop = true;
      while (!progress.stop) std::this_thread::yield();
      if (together.rank() == 0) throw Error(ErrorKind::kIo, "its files are gone");
      throw_if_stopped(options);
    };
    together.step("work", progress, work, [&] {
      cleaned += together.rank() == 2 ? 1 : 100;  // others were stopped by this one, and clean up when all agreed
    });
  });
  CHECK(error.kind() == ErrorKind::kInterrupted);
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
  for (const std::uint32_t failing : {0u, 1u}) {
    const Error at_step = agreed_error(2, [&](Together& together) {
      if (together.rank() == failing) throw Error(ErrorKind::kUsage, "not an option");
      step(together, "plan", [] {});
    });
    CHECK(std::string(at_step.what()) == "rank " + std::to_string(failing) + " on n0: not an option");
    check_error(agreed_error(2,
                             [&](Together& together) {
                               step(together, "plan", [] {});
                               if (together.rank() == failing) throw Error(ErrorKind::kIo, "gone");
                               together.gather("letters", "x");
                             }),
                {.kind = ErrorKind::kIo});
    check_error(agreed_error(2,
                             [&](Together& together) {
                               step(together, "plan", [] {});
                               if (together.rank() == failing) throw std::runtime_error("odd");
                             }),
                {.kind = ErrorKind::kInternal});
  }
}

TEST_CASE("Ranks that do different things are told so, and stop") {
  const Error names =
      agreed_error(3, [](Together& together) { step(together, together.rank() == 1 ? "verify" : "plan", [] {}); });
  CHECK(names.kind() == ErrorKind::kUsage);
  CHECK(std::string(names.what()) == "rank 0 on n0 wants to plan, and rank 1 on n0 to verify");
  const Error given = agreed_error(3, [](Together& together) {
    if (together.rank() == 2) together.set_given({{"--check-inputs", ""}});
    step(together, together.rank() == 2 ? "look for digests" : "compare", [] {});
  });
  CHECK(std::string(given.what()) ==
        "rank 0 on n0 wants to compare, and rank 2 on n1 to look for digests: --check-inputs besides");
  check_error(agreed_error(2,
                           [](Together& together) {
                             if (together.rank() == 0) step(together, "plan", [] {});
                           }),
              {.kind = ErrorKind::kUsage});
}

TEST_CASE("When a rank dies the others give up after their time") {
  for (const std::uint32_t dying : {0u, 2u}) {
    const auto thrown = run_ranks(
        3,
        [&](Together& together) {
          step(together, "plan", [] {});
          if (together.rank() == dying) throw Death();
          step(together, "copy", [] {});
        },
        std::chrono::milliseconds(200));
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      if (rank == dying) continue;
      REQUIRE(thrown[rank]);
      CHECK(thrown[rank]->kind() == ErrorKind::kLost);
    }
  }
}

TEST_CASE("Ranks' bytes are summed up for the progress bar") {
  check_none_threw(run_ranks(3, [](Together& together) {
    Progress progress;
    progress.done_bytes = 10 * (together.rank() + 1);
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
