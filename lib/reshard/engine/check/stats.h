#pragma once

#include <vector>

#include "reshard/engine/move/run_options.h"
#include "reshard/engine/ranks/together.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/tensor/cast/numeric.h"

namespace reshard {

/// Summarizes the values of the logical tensors `wanted` (indices into `map.logical`, each once), in that order. Reads
/// each of their bytes once; the results do not depend on threads or memory.
/// \throws Error as run_program does.
std::vector<ValueSummary> compute_stats(const SourceMap& map, const std::vector<std::uint32_t>& wanted,
                                        const RunOptions& options);
/// The same, distributed over ranks. Each rank reads some of the tensors and returns all summaries.
/// \throws as read_together.
std::vector<ValueSummary> compute_stats(const SourceMap& map, const std::vector<std::uint32_t>& wanted,
                                        const RunOptions& options, Together& together);

}  // namespace reshard
