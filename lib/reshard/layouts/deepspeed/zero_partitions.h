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

/// Where each parameter's master weights lie.
struct ZeroMasters {
  DType dtype = DType::kF32;
  std::unordered_map<std::string, std::vector<FlatRun>> runs;
};

/// The files of the optimizer, one a rank, by rank; of file `first_file + rank` in runs.
struct ZeroRanks {
  std::span<const ZeroOptimStates> states;
  std::uint32_t first_file = 0;
};

/// Of stages 1 and 2: the parameters of a group, one after another, with the padding that the files say between them,
/// are cut into one partition per rank, the last ones with padding at the end or without. Of stage 3: each parameter is
/// cut into one part per rank, the last with padding, and a rank's parts lie one after another in its sub-groups.
/// \param groups  the parameters in the order of the partitions; where they were read, `shapes_file`, for errors.
/// \throws Error kBadInput if the partitions are not those of the groups.
ZeroMasters place_masters(const ZeroRanks& ranks, const std::vector<std::vector<ZeroParameter>>& groups,
                          const std::filesystem::path& shapes_file);

/// The elements of a parameter that each rank's part has room for in stage 3.
std::uint64_t elems_per_rank(std::uint64_t elems, std::uint64_t ranks);

}  // namespace reshard
