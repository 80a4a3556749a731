#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/engine/run.h"
#include "reshard/plan/job.h"

namespace reshard {

struct RunResult {
  std::uint64_t files = 0;            // written
  std::uint64_t read_bytes = 0;       // of tensors, compared ones counted
  std::vector<Divergence> divergent;  // replicas that differ where that is allowed, in the order of their texts
  std::vector<std::string> notes;     // what else the user should know: whole sentences
  std::uint64_t written_bytes = 0;    // of all files
  double seconds = 0;
};

/// Proves that the outputs may be written and fit, writes them into a staging directory, flushes them to disk (if
/// options.sync) and publishes them. Either all of the job's files stand under their names afterwards, or none.
/// \throws Error of any kind; then nothing has changed but that a file replaced in a crash of the machine may be
/// either.
RunResult execute(const Job& job, RunOptions options);

}  // namespace reshard
