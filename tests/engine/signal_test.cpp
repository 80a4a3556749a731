// What a run that a signal stops leaves for the next one.

#include <chrono>
#include <cstdint>
#include <filesystem>

#include "engine/publish/stopped_run.h"
#include "engine/some_jobs.h"
#include "reshard/engine/job_run.h"
#include "support/catch.h"
#include "support/errors.h"
#include "support/fault_storage.h"
#include "support/files.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

TEST_CASE("A signal leaves nothing, but for the next run if that was asked for") {
  for (const bool resume : {false, true}) {
    const Jobs jobs;
    const auto before = snapshot(jobs.temp.path());
    const auto job = jobs.planners.front().second(jobs.temp / "out");
    FaultStorage storage;
    Progress progress;
    RunOptions options = journalled(storage, &progress);
    options.resume = resume;
    storage.before = [&](FaultStorage::Operation operation, std::uint64_t) {
      if (operation == FaultStorage::Operation::kWrite && progress.done_bytes > job->program.write_bytes / 2)
        progress.stop = true;
    };
    CHECK(error_of([&] { execute(*job, options); }).kind() == ErrorKind::kInterrupted);
    CHECK(staging_in(jobs.temp.path()).has_value() == resume);
    if (!resume) CHECK((snapshot(jobs.temp.path()) == before));
  }
}

TEST_CASE("A signal journals what is complete, however long the journal's interval, and a failed write does not") {
  struct Case {
    ErrorKind why;
    std::uint32_t ranks;
  };
  for (const Case& one : {Case{ErrorKind::kInterrupted, 1}, {ErrorKind::kInterrupted, 2}, {ErrorKind::kIo, 1}}) {
    CAPTURE(one.why, one.ranks);
    const Jobs jobs;
    const auto job = jobs.planners.front().second(jobs.temp / "out");
    execute(*job, unsynced());
    const auto expected = snapshot(jobs.temp / "out");
    fs::remove_all(jobs.temp / "out");
    FaultStorage storage;
    Progress progress;
    RunOptions options = journalled(storage, &progress);
    options.journal_interval = std::chrono::hours(1);
    options.tuning.page_bytes = 64;  // so that ranks write to files and not to pages that they share
    options.resume = true;
    const std::uint64_t half_bytes = job->program.write_bytes / one.ranks / 2;
    storage.before = [&](FaultStorage::Operation operation, std::uint64_t) {
      if (operation != FaultStorage::Operation::kWrite || progress.done_bytes < half_bytes) return;
      if (one.why == ErrorKind::kInterrupted) progress.stop = true;
      if (one.why == ErrorKind::kIo) throw Error(ErrorKind::kIo, "made to fail");
    };
    {
      JobRun leader(*job, options);
      leader.prepare(one.ranks);
      JobRun last(*job, options);  // of the ranks: the leader itself moves nothing if there are two
      if (one.ranks > 1) last.attach(leader.prepared());
      JobRun& moves = one.ranks > 1 ? last : leader;
      CHECK(error_of([&] { moves.run({one.ranks - 1, one.ranks}); }).kind() == one.why);
      CHECK(leader.keep(one.why) == (one.why == ErrorKind::kInterrupted));
    }
    const auto staging = staging_in(jobs.temp.path());
    REQUIRE(staging.has_value() == (one.why == ErrorKind::kInterrupted));
    if (!staging) continue;
    const std::uint64_t had = journalled_bytes(*staging);
    CHECK(had > half_bytes / 2);
    RunOptions again = journalled(local_storage());
    again.resume = true;
    CHECK(execute(*job, again).resumed_bytes == had);
    CHECK((snapshot(jobs.temp / "out") == expected));
  }
}

}  // namespace
}  // namespace reshard::test
