#pragma once

#include "reshard/plan/job/name_rules.h"
#include "reshard/plan/transforms/draft.h"

namespace reshard {

/// Whether the rules leave out the tensor of this name.
bool is_dropped(const NameRules& rules, const std::string& name);

/// Renames and drops tensors; each rule sees the names that those before it made. States follow their parameters. Notes
/// rules that match nothing.
/// \throws Error kUsage if two tensors would have one name, or none is left; kUnsupported as follow_parameters.
void select(Draft& draft, const NameRules& rules);

}  // namespace reshard
