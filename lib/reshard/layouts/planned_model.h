#pragma once

#include <string>
#include <vector>

#include "reshard/formats/common/container.h"
#include "reshard/layouts/sharded_checkpoint.h"
#include "reshard/specs/model/config_plan.h"

namespace reshard {

/// The model of a whole checkpoint, of these files, that nobody describes but the plan in its config.json.
/// \param notes Gets what the user should know, in whole sentences.
/// \throws as ConfigPlan.
Model planned_model(const ModelConfig& config, const std::vector<Container>& files, std::vector<std::string>& notes);

/// The same of shards. Metadata says what the whole tensors are; where there is none, the plan does.
Model planned_model(const ModelConfig& config, const ShardedCheckpoint& shards, std::vector<std::string>& notes);

}  // namespace reshard
