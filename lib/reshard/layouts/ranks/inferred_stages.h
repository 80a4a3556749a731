#pragma once

#include "reshard/layouts/ranks/sharded_checkpoint.h"
#include "reshard/specs/stages/stage_plan.h"

namespace reshard {

/// Fills the metadata of a checkpoint without metadata, from its tensors' names and shapes and the model that
/// config.json describes. Tensors that `checkpoint.rules` explains are left out. `heads` specifies properties of attention that shapes may not determine: the order of heads
/// and, if given, the multiplier or the existence of padding heads.
/// \throws Error kBadInput if a tensor does not match the model; kUnsupported for expert-parallel ranks without such
/// rules.
void infer_stages(ShardedCheckpoint& checkpoint, const Model& model, const PartitionOptions& heads = {});

}  // namespace reshard
