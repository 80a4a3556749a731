#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reshard/layouts/ranks/sharded_checkpoint.h"
#include "reshard/specs/stages/stage_plan.h"

namespace reshard {

/// Removes from the files of each pipeline rank the tensors of other pipeline ranks: names that are listed only in
/// another rank's metadata. With several stages, optimum-neuron saves every parameter of the model in every file, and
/// those of other stages are uninitialized memory (seen in files that it wrote). Names that no metadata lists are kept,
/// so that later checks can refuse them. No-op without metadata.
/// \returns the number of removed tensors, over all files.
/// \throws Error kBadInput if no tensors are left in a file, or if the metadata of two pipeline ranks seems swapped.
std::uint64_t remove_other_stages(ShardedCheckpoint& checkpoint);

/// Does the same for tied parameters that no metadata lists because it has one name per parameter: with several
/// pipeline ranks, only the last one has them.
std::uint64_t remove_other_stages(ShardedCheckpoint& checkpoint, const std::vector<TiedParameter>& tied);

/// Returns a note for the user on the removed tensors; std::nullopt if none were removed.
std::optional<std::string> other_stages_note(const ShardedCheckpoint& checkpoint);

}  // namespace reshard
