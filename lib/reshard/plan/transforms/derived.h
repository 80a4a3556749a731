#pragma once

#include <vector>

#include "reshard/layouts/map/tensor_map.h"
#include "reshard/plan/transforms/draft.h"

namespace reshard {

/// Adds the tensors of `derived` (TargetPlan::derived) to the source, each computed from its inputs and in the dtype of
/// the first, and those that `target` computes from tensors of the source. Inputs stay, but a target may lack them. Inputs
/// of mean_recipe and same_recipe count once if they are the same bytes of a file.
/// \throws Error kInternal if an input does not exist.
void install_derived(Draft& draft, std::vector<LogicalTensor> derived, const TargetMap& target);

}  // namespace reshard
