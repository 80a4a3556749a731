#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/engine/run.h"
#include "reshard/engine/together.h"
#include "reshard/plan/job.h"

namespace reshard {

/// What tells a run from another one: all of it, and the parts of which one may be the reason.
struct RunIdentity {
  struct File {
    std::string name;  // without its directory
    std::uint64_t size_bytes = 0;
  };
  std::string command;        // what the ranks do: "shard"
  std::string sources;        // fingerprints of what is read
  std::string all;            // the fingerprint of what becomes of it
  std::uint64_t options = 0;  // of the run, that are in neither
  std::string output;         // the directory that is written; empty if none is
  std::vector<File> files;    // of the sources
};

/// Of a run that writes.
RunIdentity run_identity(const Job& job, const RunOptions& options);
/// Of one that only reads these maps.
/// \param what  what else it depends on: the command and its options.
RunIdentity run_identity(const std::vector<const TensorMap*>& maps, const std::string& what);

/// All ranks mean the same run, as far as rank 0 is concerned. They are told by their identities, not by their command
/// lines: threads, memory and the spelling of paths may differ.
/// \throws AgreedError kUsage, of different options or versions; kBadInput, naming the first file, of different
/// sources; RankLost.
void validate_same_run(const RunIdentity& mine, Together& together);

}  // namespace reshard
