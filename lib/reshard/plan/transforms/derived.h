#pragma once

#include <vector>

#include "reshard/layouts/map/tensor_map.h"
#include "reshard/plan/transforms/draft.h"

namespace reshard {

/// Adds to the tensors those that `derived` makes of them (TargetPlan::derived), in the dtype of their first input, and
/// those that `target` computes from them, unless they exist. Inputs stay, but a target may lack them. Inputs of a mean,
/// and of what tensors have in common, count once if they are the same bytes of a file.
/// \throws Error kInternal if an input does not exist.
void install_derived(Draft& draft, std::vector<LogicalTensor> derived, const TargetMap& target);

}  // namespace reshard
