// The optimizer in NxD's older folders, whose weights are in tp_rank_XX_pp_rank_YY/checkpoint.pt or, as xser, in
// tp_rank_XX_pp_rank_YY. It is either in the same files (save in parallel_layers/checkpointing.py, whose caller makes
// the dict) or in sibling files optim.dp_rank_XX.tp_rank_YY (save_sharded_state_dict in
// optimizer/zero_redundancy_optimizer.py).
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "reshard/io/files.h"
#include "reshard/layouts/optimizer/optimizer_listing.h"

namespace reshard {

/// Returns the optimizer's files in `folder`, sorted by rank; none if neither form exists. Opens only the first file of
/// weights to find out whether they contain an optimizer.
/// \throws Error kBadInput if both forms exist, or if pipeline stages have overwritten each other's files; like
/// read_torch_file.
std::vector<OptimizerFileName> list_older_optimizer(Files& files, const std::filesystem::path& folder);

/// Whether a file of this name contains the optimizer of one rank: "optim.dp_rank_XX.tp_rank_YY".
bool is_older_optimizer_name(std::string_view name);

}  // namespace reshard
