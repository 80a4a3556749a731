#pragma once

#include <filesystem>
#include <vector>

#include "reshard/io/files.h"
#include "reshard/plan/transforms/draft.h"

namespace reshard {

/// Completes a request with the source's ranks and format, if it has none and the layout can keep them.
/// \throws Error kUsage if neither the request nor the source gives the number of ranks.
TargetRequest completed(TargetRequest request, const Checkpoint& source);

/// Plans the requested checkpoint of the draft's tensors and training state. Adds notes to the draft, tensors that the
/// target has no place for to its dropped tensors, and copies that the target needs under another name to its map.
/// \param joined  plans of further models in the same files (TargetRequest::role).
/// \throws Error kUsage, with what would work; kBadInput if the output directory contains conflicting weights.
TargetPlan make_target(Files& files, Draft& draft, const TargetRequest& request,
                       const std::filesystem::path& output_directory, std::vector<TargetPlan> joined = {});

}  // namespace reshard
