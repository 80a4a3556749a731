#pragma once

#include <filesystem>

#include "reshard/io/files.h"
#include "reshard/plan/transforms/draft.h"

namespace reshard {

/// The request, with the ranks and the format of the source where it leaves them open, and the layout takes them over.
/// \throws Error kUsage if it does not say how many ranks there are to be, nor does the source.
TargetRequest completed(TargetRequest request, const Checkpoint& source);

/// The checkpoint of the draft's tensors and states that the request asks for. What to know of it joins the draft's notes,
/// what it has no place for its dropped tensors, and copies of tensors that it is to hold under another name, too, its map.
/// \throws Error kUsage, with what would work; kBadInput if other weights stand in the output directory.
TargetPlan make_target(Files& files, Draft& draft, const TargetRequest& request,
                       const std::filesystem::path& output_directory);

}  // namespace reshard
