#pragma once

#include <string>
#include <vector>

#include "reshard/plan/job.h"

namespace reshard {

/// Applies `extra` to the `logical` tensors that `model` does not have, with a note. Those that are kept become
/// parameters of `model` that every rank has whole, in its layer's stage or the first; others leave `logical`.
/// Without a model, null, nothing is known to be extra. \returns the names of those that are left out.
std::vector<std::string> take_extra_tensors(Job& job, ExtraTensors extra, Model* model,
                                            std::vector<LogicalTensor>& logical);

}  // namespace reshard
