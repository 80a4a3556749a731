#pragma once

#include <cstdint>
#include <filesystem>

#include "reshard/formats/common/container.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"
#include "reshard/specs/parallel/transformation_specs.h"

namespace reshard {

/// Validates that the metadata of one stage agrees with itself, and is for no fewer tensor-parallel ranks than the
/// `ranks_present` of its folder. `path` is its file. \returns the ranks there must be.
/// \throws Error kBadInput.
std::uint32_t validate_metadata(const StageMetadata& metadata, const std::filesystem::path& path,
                                std::uint32_t ranks_present);

/// Validates that the sizes which an attention spec states are those of `file`, a rank of the stage.
/// \throws Error kBadInput, naming the tensor.
void validate_spec_sizes(const StageMetadata& metadata, const std::filesystem::path& path, const Container& file);

/// A module that some rank's metadata knows of, but no rank has parameters of, lay on a stage that is gone.
/// \throws Error kBadInput, naming the modules.
void validate_all_stages_present(const ShardedCheckpoint& checkpoint);

}  // namespace reshard
