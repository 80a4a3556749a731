#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "reshard/base/note.h"
#include "reshard/engine/move/run_options.h"
#include "reshard/engine/ranks/together.h"
#include "reshard/engine/units/share_report.h"
#include "reshard/plan/job/job.h"

namespace reshard {

/// What a run did.
struct RunResult {
  std::uint64_t files = 0;            // written
  std::uint64_t read_bytes = 0;       // of tensors, including compared ones; without an earlier run's reads
  std::vector<Divergence> divergent;  // replicas with allowed differences, sorted by their texts
  Notes notes;                        // further notes for the user
  /// Target tensors that are the mean of differing tensors, in the program's order.
  std::vector<std::string> inexact;
  /// Target tensors with values beyond the range of their dtype, and the number of these values, likewise.
  std::vector<std::pair<std::string, std::uint64_t>> saturated;
  /// Target tensors with values that became 0 without being 0 in the source, if more than a hundredth did; likewise.
  std::vector<std::pair<std::string, std::uint64_t>> zeroed;
  std::uint64_t written_bytes = 0;  // over all files
  std::uint64_t resumed_bytes = 0;  // the part of written_bytes that an earlier run wrote
  double seconds = 0;               // from prepare to the end of publish
  double hashing_seconds = 0;       // thread time for hashing a manifest's tensors while they are moved
  double rereading_seconds = 0;     // from the end of writing to the end of rereading and hashing files
};

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
