#pragma once

#include <span>
#include <vector>

#include "reshard/io/files.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/specs/stages/stage_plan.h"

namespace reshard {

/// Makes each parameter in `tied` a replica of its source if the source map has both with the same bytes. Reads both,
/// unless a sample differs or the two are one place of one file. Rank files that agree in a part only, or have the parts
/// of other ranks, were damaged or swapped: these are replicas too, and the run reports the difference.
/// \returns those that have values of their own.
/// \throws Error kIo.
std::vector<TiedParameter> join_tied(Files& files, SourceMap& map, const std::vector<TiedParameter>& tied);

/// The same for what the model of `checkpoint`, if there is one, takes for tied: a head with values of its own is tied
/// no more, which is noted. A head that is stored in the embedding's place gets the embedding's name.
void settle_ties(Files& files, Checkpoint& checkpoint);

/// Unties the parameters that are among the `tensors`, whose ties are settled, next to their sources.
void untie_held(Model& model, std::span<const LogicalTensor> tensors);

}  // namespace reshard
