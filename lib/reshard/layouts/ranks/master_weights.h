#pragma once

#include <filesystem>
#include <span>

#include "reshard/layouts/ranks/rank_format.h"

namespace reshard {

/// The folder beside `model` that holds the optimizer's states.
inline constexpr const char* kOptimizerFolder = "optim";

/// NxD may save a checkpoint without its weights (avoid_saving_lower_precision_weights). Whether that is so: no tensor
/// that the xser files of `ranks` refer to is there, and the optimizer's files in `folder` have the weights in fp32. Not
/// so for files that cannot be read, whose readers say why.
bool has_weights_in_optimizer_alone(Files& files, const std::filesystem::path& folder, std::span<const RankFile> ranks);

/// Whether a checkpoint of that kind may have lost its optimizer: no tensor that the xser file of `rank` refers to is
/// there, and `folder` is not, or holds no file of an optimizer.
bool may_lack_optimizer(Files& files, const std::filesystem::path& folder, const RankFile& rank);

}  // namespace reshard
