#pragma once

#include <filesystem>

#include "reshard/layouts/ranks/sharded_checkpoint.h"

namespace reshard {

/// Validates that whatever the files of an adapter hold of a fused linear is something that its spec explains.
/// \throws Error kUnsupported, naming the tensor.
void validate_adapter_explained(const ShardedCheckpoint& checkpoint);

/// Validates that the tensors of one module fit each other. A bias or magnitude that is split, though its metadata does
/// not say so, would show here. `where` is for errors.
/// \throws Error kBadInput, naming the tensor.
void validate_adapter_sizes(const TensorMap& map, const std::filesystem::path& where);

}  // namespace reshard
