#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include "reshard/engine/move/run.h"
#include "reshard/engine/ranks/together.h"
#include "reshard/plan/job/job.h"

namespace reshard {

/// Identifies a run by the fingerprint of all of it, and by parts that can explain a difference.
struct RunIdentity {
  struct File {
    std::filesystem::path path;  // on this rank
    std::string name;            // without its directory
    std::uint64_t size_bytes = 0;

    static auto fields(auto& self) { return std::tie(self.name, self.size_bytes); }  // what ranks compare
  };
  std::string command;        // "shard"
  std::string sources;        // fingerprints of the sources
  std::string all;            // fingerprint of the run; empty if nothing is written
  std::uint64_t options = 0;  // options that the fingerprints do not contain
  std::string output;         // the output directory; empty if nothing is written
  std::vector<File> files;    // source files
};

/// Returns the identity of a run that writes.
RunIdentity run_identity(const Job& job, const RunOptions& options);
/// Returns the identity of a run that only reads these maps.
/// \param what  the command and its options.
RunIdentity run_identity(const std::vector<const SourceMap*>& maps, const std::string& what);

/// Validates that all ranks take part in the same run as rank 0. Compares identities, not command lines: threads,
/// memory and the spelling of paths may differ. If the stamps of the source files differ, as for copies on the disks of
/// several machines, compares some blocks of each file.
/// \throws AgreedError kUsage for different options or versions; kBadInput, naming the first file, for different
/// sources; kIo; RankLost.
void validate_same_run(const RunIdentity& mine, const RunOptions& options, Together& together);

}  // namespace reshard
