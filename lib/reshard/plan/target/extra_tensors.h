#pragma once

#include <string>
#include <vector>

#include "reshard/plan/job/job.h"

namespace reshard {

/// Applies `extra` to the `logical` tensors that `model` does not have, with a note. Those that are kept become
/// parameters of `model` that every rank has whole, in its layer's stage or the first; others leave `logical`.
/// Without a model, null, nothing is known to be extra. \returns the names of those that are left out.
/// \throws Error kUnsupported if extra tensors are to be kept in a `target` that the model's own alone have a place in.
std::vector<std::string> take_extra_tensors(Job& job, ExtraTensors extra, const TargetRequest& target, Model* model,
                                            std::vector<LogicalTensor>& logical);

}  // namespace reshard
