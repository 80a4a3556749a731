#pragma once

#include "reshard/plan/job/name_rules.h"
#include "reshard/plan/transforms/draft.h"

namespace reshard {

/// Whether the rules drop the tensor with this name.
bool is_dropped(const NameRules& rules, const std::string& name);

/// Renames and drops tensors. Sets Draft::layers, and the model's layers, if whole layers are dropped and the others are
/// the first ones or are renumbered. Each rule sees the names that earlier rules made. Optimizer state follows its parameters.
/// Notes rules that match nothing.
/// \throws Error kUsage if two tensors would have the same name, or if no tensor is left; kUnsupported as
/// follow_parameters.
void select(Draft& draft, const NameRules& rules);

}  // namespace reshard
