#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/note.h"
#include "reshard/formats/common/container.h"
#include "reshard/specs/model/config_plan.h"

namespace reshard {

inline constexpr std::string_view kByPlan =
    "the plan in config.json (base_model_tp_plan) defines how its tensors are split; tensors that it does not name are "
    "replicated on every rank";

/// Returns the plan in config.json for a checkpoint with these tensors.
/// \param who_says  Clause for a note: what declares how the tensors are split.
/// \param notes     Receives what is unknown or idle in the plan.
/// \throws as ConfigPlan.
ConfigPlan plan_for(const ModelConfig& config, const std::vector<WholeTensor>& tensors, std::string_view who_says,
                    Notes& notes);

/// Returns the tensors of `files`, in their order.
std::vector<WholeTensor> whole_tensors(const std::vector<Container>& files);

/// Returns the model of a checkpoint of whole tensors that is described only by the plan in its config.json.
/// \throws as ConfigPlan.
Model planned_model(const ModelConfig& config, const std::vector<WholeTensor>& tensors, Notes& notes);

}  // namespace reshard
