#pragma once

#include "reshard/plan/transforms/draft.h"

namespace reshard {

/// Applies `extra` to the wanted tensors that the model does not have, with a note. Kept tensors become parameters of
/// the model that are replicated on every rank, in their layer's stage or the first one. Without a model, no tensor is
/// extra.
/// \throws Error kUnsupported if extra tensors are to be kept and `target` can contain only the model's own.
void apply_extra_tensors(Draft& draft, ExtraTensors extra, const TargetRequest& target);

}  // namespace reshard
