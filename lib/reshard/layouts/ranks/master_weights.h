#pragma once

#include <filesystem>
#include <span>

#include "reshard/layouts/ranks/rank_format.h"

namespace reshard {

/// The folder next to `model` that contains the optimizer's states.
inline constexpr const char* kOptimizerFolder = "optim";

/// Whether NxD saved the checkpoint without its weights (avoid_saving_lower_precision_weights): none of the tensor
/// files that the xser files of `ranks` refer to exists, and the optimizer's files in `folder` contain the weights in
/// fp32. Returns false if files cannot be read, so that their readers report the error.
bool has_weights_in_optimizer_alone(Files& files, const std::filesystem::path& folder, std::span<const RankFile> ranks);

/// Whether such a checkpoint may have lost its optimizer: none of the tensor files that the xser file of `rank` refers
/// to exists, and `folder` does not exist or contains no optimizer files.
bool may_lack_optimizer(Files& files, const std::filesystem::path& folder, const RankFile& rank);

}  // namespace reshard
