#pragma once

#include "reshard/engine/move/run.h"
#include "reshard/plan/job/fingerprint.h"

namespace reshard {

/// Fingerprint of a job and of the options that affect its output or whether its source is accepted:
/// RunOptions::overflow if tensors are cast, RunOptions::replicas if replicas may differ. Independent of threads,
/// memory, storage and sync. Processes that share a run (JobRun) compare their fingerprints before they write.
Fingerprint run_fingerprint(const Job& job, const RunOptions& options);

}  // namespace reshard
