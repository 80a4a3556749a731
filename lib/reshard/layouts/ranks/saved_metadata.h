#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "reshard/layouts/ranks/sharded_checkpoint.h"

namespace reshard {

// Metadata that torch saved (specs/stages/stage_pt.h), in one file per pipeline rank or in every rank file. It contains
// neither the number of ranks nor the aliases of tensors.

/// Fills `metadata` and `described_in` of `checkpoint` from the rank files. No-op if these contain no metadata.
/// \throws Error kBadInput if ranks of one stage contradict each other or if a rank file lacks a listed parameter; like
/// read_stage_pt.
void read_metadata_of_ranks(Files& files, ShardedCheckpoint& checkpoint);

/// Reads the metadata of stages whose file in `described_in` is one that torch saved.
/// \throws Error like read_stage_pt and validate_metadata.
void read_old_metadata(Files& files, ShardedCheckpoint& checkpoint);

/// Lists the tensors that old metadata omits, like its writer: buffers, which every rank has, and aliases, which have
/// the shape of a parameter and the same bytes in the middle. Skips names in `tied`. The engine compares all bytes of
/// both kinds. Reads a few kilobytes per omitted tensor and rank. \returns the aliases.
std::vector<TiedParameter> list_omitted_tensors(Files& files, ShardedCheckpoint& checkpoint,
                                                const std::vector<TiedParameter>& tied);

/// Validates that the sizes in config.json occur in the shapes of `map`. Without metadata that contains the number of
/// ranks, this is the only sign that the last ranks are missing.
/// \throws Error kBadInput, naming the key of config.json.
void validate_stated_sizes(const SourceMap& map, const ModelConfig& config, const std::filesystem::path& folder);

}  // namespace reshard
