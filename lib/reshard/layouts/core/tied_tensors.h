#pragma once

#include <span>
#include <vector>

#include "reshard/io/files.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/specs/stages/stage_plan.h"

namespace reshard {

/// Makes each parameter in `tied` a replica of its source if `map` contains both with equal bytes. Reads both unless a
/// sample differs or both are stored at the same place. Rank files that are equal only in part, or contain the parts of
/// other ranks, were damaged or swapped: their parameters become replicas too, so that the run reports the difference.
/// \returns the parameters that differ from their source.
/// \throws Error kIo.
std::vector<TiedParameter> join_tied(Files& files, SourceMap& map, const std::vector<TiedParameter>& tied);

/// Joins the parameters that the model of `checkpoint` declares as tied. Unties parameters that differ, with a note. A
/// head that is stored instead of the embedding gets the embedding's name. No-op if the model is unknown.
void settle_ties(Files& files, Checkpoint& checkpoint);

/// Unties parameters that are in `tensors` together with their sources. Call after settle_ties or join_tied.
void untie_held(Model& model, std::span<const LogicalTensor> tensors);

}  // namespace reshard
