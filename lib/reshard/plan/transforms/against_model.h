#pragma once

#include "reshard/plan/job/request.h"
#include "reshard/plan/transforms/draft.h"

namespace reshard {

/// Holds the tensors that are wanted, under their new names, against what config.json asks for, and makes Draft::model.
/// Notes what name rules take from the model. For ranks of a mesh the tensors are put into the model's order.
/// \throws Error kBadInput for tensors that are missing, or have other shapes, and for those that are not explained where
/// the target needs the model; kUsage if the request allows missing tensors in a layout that needs them.
void hold_against_model(Draft& draft, const Request& request);

}  // namespace reshard
