#pragma once

#include <vector>

#include "reshard/layouts/ranks/sharded_checkpoint.h"

namespace reshard {

/// Whether the files of an adapter still are what LoraFuse::kExact made of it: lora_A with the rows that `stacked`,
/// which is its metadata with stacked ranks, says, and lora_B with zeros everywhere but on the diagonal. Training ends
/// the zeros. Reads the lora_B of fused linears, in parts.
/// \throws Error kIo.
bool holds_stacked(Files& files, const ShardedCheckpoint& checkpoint, const std::vector<StageMetadata>& stacked);

}  // namespace reshard
