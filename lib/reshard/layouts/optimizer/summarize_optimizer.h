#pragma once

#include "reshard/io/files.h"
#include "reshard/layouts/optimizer/optimizer_files.h"
#include "reshard/layouts/states/optimizer_summary.h"

namespace reshard {

/// Reads the step; all else is in `optimizer`.
/// \throws Error kIo.
OptimizerSummary summarize_optimizer(Files& files, const OptimizerFiles& optimizer);

/// Parameters that are trained have the same step on all pipeline stages. Reads the steps of one rank of each.
/// \throws Error kBadInput, naming two files and their steps; kIo.
void validate_steps(Files& files, const OptimizerFiles& optimizer);

}  // namespace reshard
