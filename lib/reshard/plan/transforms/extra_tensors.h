#pragma once

#include "reshard/plan/transforms/draft.h"

namespace reshard {

/// Applies `extra` to the wanted tensors that the model does not have, with a note. Those that are kept become parameters
/// of the model that every rank has whole, in its layer's stage or the first. Without a model nothing is known to be extra.
/// \throws Error kUnsupported if extra tensors are to be kept in a `target` that the model's own alone have a place in.
void apply_extra_tensors(Draft& draft, ExtraTensors extra, const TargetRequest& target);

}  // namespace reshard
