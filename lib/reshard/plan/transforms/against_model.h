#pragma once

#include "reshard/plan/job/request.h"
#include "reshard/plan/transforms/draft.h"

namespace reshard {

/// Validates the wanted tensors, under their new names, against config.json, and sets Draft::model. Notes the model's
/// tensors that name rules remove. For ranks of a mesh, sorts the tensors in the model's order.
/// \throws Error kBadInput for tensors that are missing or have other shapes, and for unknown tensors if the target
/// needs the model; kUsage if the request allows missing tensors in a layout that needs all.
void hold_against_model(Draft& draft, const Request& request);

}  // namespace reshard
