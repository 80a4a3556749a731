#pragma once

#include "reshard/layouts/ranks/sharded_checkpoint.h"
#include "reshard/specs/stages/stage_plan.h"

namespace reshard {

/// Fills the metadata of a checkpoint that has none, from its tensors' names and shapes and the model that config.json
/// describes. `heads` says of attention what the shapes may not: the order of heads, and where it is given the
/// multiplier, or that there are padding heads.
/// \throws Error kBadInput for a tensor that the model does not explain.
void infer_stages(ShardedCheckpoint& checkpoint, const Model& model, const PartitionOptions& heads = {});

}  // namespace reshard
