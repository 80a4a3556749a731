#pragma once

#include "reshard/engine/job_run.h"
#include "reshard/engine/ranks/together.h"

namespace reshard {

/// Runs all steps of a JobRun as a single share: validates that the outputs may be written and fit, writes them into a
/// staging directory, flushes them to disk (if options.sync) and publishes them. Publishes either all files of the job
/// or none.
/// \throws Error of any kind. Nothing has changed then, except that after a machine crash a replaced file may be the
/// old or the new one.
RunResult execute(const Job& job, RunOptions options);

/// The same, distributed over ranks. Each rank calls this with the job that it has planned; the outputs are those of a
/// single process. Rank 0 prepares and publishes. If one rank fails, all throw the same error and nothing is published.
/// \returns the complete result on rank 0; on other ranks, only that the run is done.
/// \throws as Together::step; AgreedError kUsage or kBadInput if the ranks planned different runs.
RunResult execute(const Job& job, RunOptions options, Together& together);

}  // namespace reshard
