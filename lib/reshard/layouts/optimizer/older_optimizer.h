// The optimizer in NxD's older folders, where the weights are in tp_rank_XX_pp_rank_YY/checkpoint.pt or, as xser, in
// tp_rank_XX_pp_rank_YY: in the same files (parallel_layers/checkpointing.py save, whose caller makes the dict), or beside
// them in optim.dp_rank_XX.tp_rank_YY (optimizer/zero_redundancy_optimizer.py save_sharded_state_dict).
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "reshard/io/files.h"
#include "reshard/layouts/optimizer/optimizer_listing.h"

namespace reshard {

/// The files in `folder`, sorted by rank; none where neither form is there. Whether files of weights hold an optimizer is
/// asked of the first of them.
/// \throws Error kBadInput for two files of one rank, and where both forms are there; as read_torch_file.
std::vector<OptimizerFileName> list_older_optimizer(Files& files, const std::filesystem::path& folder);

/// Whether a file of this name contains the optimizer of one rank: "optim.dp_rank_XX.tp_rank_YY".
bool is_older_optimizer_name(std::string_view name);

}  // namespace reshard
