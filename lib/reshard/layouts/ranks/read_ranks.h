#pragma once

#include <vector>

#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"

namespace reshard {

inline constexpr LayoutOption kKvSizeMultiplier{
    .name = "kv-size-multiplier",
    .type = LayoutOption::Type::kDegree,
    .help = "Replicas of each key/value head (default: TP / key-value heads, or the fewest that place whole heads)",
    .why_idle = why_multiplier_idle};

/// Implements Layout::read for a layout with ranks: reads their headers and metadata and compares them with each other
/// and with the model. If several layouts use the same file names, the result has the one that matches.
Checkpoint read_ranks(Files& files, const FoundLayout& found, const ReadContext& context);

/// Refuses ranks with the same bytes (find_equal_ranks), unless the files record their ranks. If `use` is kLenient, only
/// adds a note.
/// \throws Error kBadInput, naming both ranks; kIo.
void validate_ranks_differ(Files& files, const ShardedCheckpoint& shards, ConfigUse use, Checkpoint& checkpoint);

/// Returns the partition of the ranks of `checkpoint`, whose model must be known, as far as it was a choice.
/// optimum-neuron, which saves metadata, uses grouped query only if the ranks do not divide the heads. NxD, which saves
/// none, has a setting for it.
/// \param inferred  the metadata of `stages` was inferred instead of read.
PartitionOptions chosen_partition(const Checkpoint& checkpoint, const std::vector<StageMetadata>& stages,
                                  bool inferred);

}  // namespace reshard
