#pragma once

#include <string>
#include <vector>

#include "reshard/plan/job/request.h"
#include "reshard/plan/transforms/draft.h"

namespace reshard {

/// Completes the models that `request` joins with what the compiled model needs for them.
/// \throws Error kUsage if the compiled model loads other models than the request has.
void complete_joined(Request& request, const CompiledModel& compiled);

/// Validates the roles of the models that `request` joins, and sets that of its own model.
/// \throws Error kUsage if the target's layout has no place for them.
void take_roles(Request& request);

/// Returns the request for one of the models that `request` joins.
Request request_for(const Request& request, const JoinedModel& model);

/// Validates that `joined` has the vocabulary of `base`, and reads hidden states of its size (target_hidden_size), unless
/// both were compiled together.
/// \throws Error kBadInput, with both sizes.
void validate_same_sizes(const JoinedModel& model, const Draft& joined, const Draft& base);

/// Adds the tensors of further models to the files of `plan`. The names of their logical tensors get their role as
/// prefix.
void join_plans(TargetPlan& plan, std::vector<TargetPlan> joined);

/// Adds the tensors and notes of a further model to those of `draft`, with the same prefix.
void join_draft(Draft& draft, Draft model, const std::string& role);

}  // namespace reshard
