#pragma once

#include <string>
#include <vector>

#include "reshard/layouts/ranks/sharded_checkpoint.h"
#include "reshard/specs/model/model.h"

namespace reshard {

/// The model of shards that nobody describes but the plan in config.json. Metadata says what the whole tensors are; where
/// there is none, the plan does.
/// \param notes Gets what the user should know, in whole sentences.
/// \throws as ConfigPlan.
Model planned_model(const ModelConfig& config, const ShardedCheckpoint& shards, std::vector<std::string>& notes);

}  // namespace reshard
