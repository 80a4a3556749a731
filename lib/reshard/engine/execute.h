#pragma once

#include "reshard/engine/job_run.h"

namespace reshard {

/// Takes all steps of a JobRun, with one share that is everything: validates that the outputs may be written and fit,
/// writes them into a staging directory, flushes them to disk (if options.sync) and publishes them. Either all of the
/// job's files stand under their names afterwards, or none.
/// \throws Error of any kind; then nothing has changed but that a file replaced in a crash of the machine may be
/// either.
RunResult execute(const Job& job, RunOptions options);

}  // namespace reshard
