// What a run that a signal stops leaves for the next one.

#include "engine/publish/stopped_run.h"
#include "reshard/engine/job_run.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {
TEST_CASE("A signal journals what is complete, however long the journal's interval, and a failed write does not") {
  const auto [why, ranks] = GENERATE(table<ErrorKind, std::uint32_t>(
      {{ErrorKind::kInterrupted, 1u}, {ErrorKind::kInterrupted, 2u}, {ErrorKind::kIo, 1u}}));
  const bool interrupted = why == ErrorKind::kInterrupted;
  CAPTURE(interrupted, ranks);
  const Jobs jobs;
  const auto job = jobs.plan();
  const auto expected = written_by(*job);
  FaultStorage storage;
  Progress progress;
  RunOptions options = resuming(storage);
  options.progress = &progress;
  options.journal_interval = std::chrono::hours(1);
  options.tuning.page_bytes = 64;  // so that ranks write to files and not to pages that they share
  const std::uint64_t half_bytes = job->program.write_bytes / ranks / 2;
  storage.before = [&](FaultStorage::Operation operation, std::uint64_t) {
    if (operation != FaultStorage::Operation::kWrite || progress.done_bytes < half_bytes) return;
    if (!interrupted) throw Error(ErrorKind::kIo, "made to fail");
    progress.stop = true;
  };
  {
    JobRun leader(*job, options);
    leader.prepare(ranks);
    JobRun last(*job, options);  // of the ranks: the leader itself moves nothing if there are two
    if (ranks > 1) last.attach(leader.prepared());
    const Share share{ranks - 1, ranks};
    JobRun& moves = ranks > 1 ? last : leader;
    check_refused([&] { moves.run(share); }, {.kind = why});
    CHECK(leader.keep(why) == interrupted);
  }
  const auto staging = staging_in(jobs.temp.path());
  REQUIRE(staging.has_value() == interrupted);
  if (!staging) return;
  const std::uint64_t had = journalled_bytes(*staging);
  CHECK(had > half_bytes / 2);
  CHECK(execute(*job, resuming()).resumed_bytes == had);
  CHECK((snapshot(jobs.output) == expected));
}

}  // namespace
}  // namespace reshard::test
