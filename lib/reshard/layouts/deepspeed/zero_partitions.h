#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "reshard/layouts/deepspeed/zero_checkpoint.h"
#include "reshard/layouts/deepspeed/zero_files.h"

namespace reshard {

/// Where the master weights of each parameter are stored.
struct ZeroMasters {
  DType dtype = DType::kF32;
  std::unordered_map<std::string, std::vector<FlatRun>> runs;
};

/// The optimizer files, one per rank. In FlatRun::file, `first_file + rank` denotes the file of a rank.
struct ZeroRanks {
  std::span<const ZeroOptimStates> states;
  std::uint32_t first_file = 0;
};

/// Locates the master weights in the partitions. In stages 1 and 2, the parameters of a group are concatenated, with
/// the padding that the files record, and split into one partition per rank; padding at the end may be missing. In
/// stage 3, each parameter is split into one part per rank, the last with padding, and a rank's parts are stored
/// consecutively in its sub-groups.
/// \param groups       The parameters in the order of the partitions.
/// \param shapes_file  The file that `groups` were read from, for errors.
/// \throws Error kBadInput if the partitions do not match the groups.
ZeroMasters place_masters(const ZeroRanks& ranks, const std::vector<std::vector<ZeroParameter>>& groups,
                          const std::filesystem::path& shapes_file);

/// Returns the number of elements per rank, padding included, that stage 3 reserves for a parameter.
std::uint64_t elems_per_rank(std::uint64_t elems, std::uint64_t ranks);

}  // namespace reshard
