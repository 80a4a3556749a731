#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "reshard/layouts/ranks/sharded_checkpoint.h"

namespace reshard {

// Metadata that torch saved (specs/stages/stage_pt.h): in a file per pipeline rank, or in every rank file. It states
// neither the number of ranks nor which tensors are second names of others.

/// Fills `metadata` and `described_in` of `checkpoint` from the rank files, if these contain it; else a no-op.
/// \throws Error kBadInput if ranks of one stage contradict each other, or a rank file lacks a listed parameter; as
///         read_stage_pt does.
void read_metadata_of_ranks(Files& files, ShardedCheckpoint& checkpoint);

/// Reads metadata of stages whose file in `described_in` is one that torch saved.
/// \throws Error as read_stage_pt and validate_metadata do.
void read_old_metadata(Files& files, ShardedCheckpoint& checkpoint);

/// Lists the tensors that old metadata omits, as its writer takes them: buffers, which every rank has, and second names
/// of parameters, which have the shape of one and the same bytes in the middle. Names in `tied` are skipped. The engine compares all
/// bytes of both kinds. Reads a few kilobytes per omitted tensor and rank. \returns the second names.
std::vector<TiedParameter> list_omitted_tensors(Files& files, ShardedCheckpoint& checkpoint,
                                                const std::vector<TiedParameter>& tied);

/// The sizes that config.json states occur in the shapes of `map`. Without metadata that states the number of ranks,
/// nothing else shows that the last ones are missing.
/// \throws Error kBadInput, naming the key of config.json.
void validate_stated_sizes(const SourceMap& map, const ModelConfig& config, const std::filesystem::path& folder);

}  // namespace reshard
