#pragma once

#include "reshard/engine/job_run.h"
#include "reshard/engine/ranks/together.h"

namespace reshard {

/// Takes all steps of a JobRun, with one share that is everything: validates that the outputs may be written and fit,
/// writes them into a staging directory, flushes them to disk (if options.sync) and publishes them. Either all of the
/// job's files stand under their names afterwards, or none.
/// \throws Error of any kind; then nothing has changed but that a file replaced in a crash of the machine may be
/// either.
RunResult execute(const Job& job, RunOptions options);

/// The same by several ranks, each of which calls this with the job that it has planned: the bytes are those of one
/// process. Rank 0 prepares and publishes. Whatever fails on one rank, all throw the same, and nothing is published.
/// \returns what was done on rank 0; on others only that it is done.
/// \throws as Together::step; AgreedError kUsage or kBadInput if the ranks do not mean the same run.
RunResult execute(const Job& job, RunOptions options, Together& together);

}  // namespace reshard
