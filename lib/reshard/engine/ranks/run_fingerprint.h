#pragma once

#include "reshard/engine/move/run.h"
#include "reshard/plan/job/fingerprint.h"

namespace reshard {

/// The fingerprint of a job and of the options that influence what its run writes, or whether it accepts its source:
/// RunOptions::overflow where something is cast, RunOptions::replicas where replicas may differ. Threads, memory,
/// storage and sync do not count. Processes that share a run (JobRun) compare theirs before they write.
Fingerprint run_fingerprint(const Job& job, const RunOptions& options);

}  // namespace reshard
