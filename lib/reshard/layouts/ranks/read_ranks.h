#pragma once

#include <vector>

#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"

namespace reshard {

inline constexpr LayoutOption kKvSizeMultiplier{
    .name = "kv-size-multiplier",
    .type = LayoutOption::Type::kCount,
    .help = "Replicas of each key/value head (default: TP / key-value heads, or the fewest that place whole heads)",
    .why_idle = why_multiplier_idle};

/// As Layout::read, of a layout with ranks: their headers and metadata are read and compared with each other and with
/// the model. Of several layouts with the same names of files, the result has the one that fits.
Checkpoint read_ranks(Files& files, const FoundLayout& found, const ReadContext& context);

/// How the ranks of `checkpoint`, whose model is known, are partitioned, as far as that was a choice. optimum-neuron,
/// which saves metadata, has grouped query only for heads that the ranks do not divide; NxD, which saves none, has a
/// setting for it.
/// \param inferred  the metadata of `stages` is not the files' own.
PartitionOptions chosen_partition(const Checkpoint& checkpoint, const std::vector<StageMetadata>& stages,
                                  bool inferred);

}  // namespace reshard
