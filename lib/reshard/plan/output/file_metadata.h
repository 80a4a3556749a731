#pragma once

#include <memory>
#include <span>
#include <vector>

#include "reshard/layouts/core/layout.h"
#include "reshard/plan/transforms/draft.h"

namespace reshard {

/// Returns TargetContext::metadata for the draft's wanted tensors: empty if no source file has such metadata.
std::vector<std::shared_ptr<const FileMetadata>> wanted_metadata(const Draft& draft);

/// Compares the metadata of the source's files with that of the target's files which contain the same tensors. Notes
/// keys that get lost.
/// \param metadata  of wanted_metadata.
/// \throws Error kUnsupported, naming the file, if no program can use the tensors without a lost key, or if a transform
/// changes tensors that such a key describes.
void validate_metadata(Draft& draft, const LayoutTraits& target, const TargetPlan& plan,
                       std::span<const std::shared_ptr<const FileMetadata>> metadata);

}  // namespace reshard
