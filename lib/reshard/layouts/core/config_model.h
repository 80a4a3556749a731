#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reshard/formats/common/container.h"
#include "reshard/specs/model/config_plan.h"

namespace reshard {

inline constexpr std::string_view kByPlan =
    "the plan in config.json (base_model_tp_plan) says how its tensors are split, and what it does not name every rank "
    "has all of";

/// The plan in config.json for a checkpoint of these tensors.
/// \param who_says  how its tensors are split, for a note.
/// \param notes     Gets what the user should know, in whole sentences.
/// \throws as ConfigPlan.
ConfigPlan plan_for(const ModelConfig& config, const std::vector<WholeTensor>& tensors, std::string_view who_says,
                    std::vector<std::string>& notes);

/// The model of a whole checkpoint, of these files, that nobody describes but the plan in its config.json.
/// \throws as ConfigPlan.
Model planned_model(const ModelConfig& config, const std::vector<Container>& files, std::vector<std::string>& notes);

}  // namespace reshard
