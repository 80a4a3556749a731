#pragma once

#include <cstdint>
#include <filesystem>

#include "reshard/formats/common/container.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"
#include "reshard/specs/parallel/transformation_specs.h"

namespace reshard {

/// Validates that the metadata of one stage is consistent and is for at least `ranks_present` tensor-parallel ranks,
/// the number in its folder. `path` is its file. \returns the number of ranks that must exist.
/// \throws Error kBadInput.
std::uint32_t validate_metadata(const StageMetadata& metadata, const std::filesystem::path& path,
                                std::uint32_t ranks_present);

/// Validates that the sizes in an attention spec match `file`, a rank of the stage.
/// \throws Error kBadInput, naming the tensor.
void validate_spec_sizes(const StageMetadata& metadata, const std::filesystem::path& path, const Container& file);

/// Validates that every module in some rank's metadata has parameters on a rank. Otherwise it belongs to a missing
/// stage.
/// \throws Error kBadInput, naming the modules.
void validate_all_stages_present(const ShardedCheckpoint& checkpoint);

}  // namespace reshard
