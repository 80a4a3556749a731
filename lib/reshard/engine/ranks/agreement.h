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

/// What tells a run from another one: all of it, and the parts of which one may be the reason.
struct RunIdentity {
  struct File {
    std::filesystem::path path;  // on this rank
    std::string name;            // without its directory
    std::uint64_t size_bytes = 0;

    static auto fields(auto& self) { return std::tie(self.name, self.size_bytes); }  // what ranks compare
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
RunIdentity run_identity(const std::vector<const SourceMap*>& maps, const std::string& what);

/// All ranks mean the same run, as far as rank 0 is concerned. They are told by their identities, not by their command
/// lines: threads, memory and the spelling of paths may differ. Sources that are not the same files by their stamps, as
/// copies on the disks of several machines, are compared by some blocks of each.
/// \throws AgreedError kUsage, of different options or versions; kBadInput, naming the first file, of different
/// sources; kIo; RankLost.
void validate_same_run(const RunIdentity& mine, const RunOptions& options, Together& together);

}  // namespace reshard
