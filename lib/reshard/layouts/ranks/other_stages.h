#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reshard/layouts/ranks/sharded_checkpoint.h"
#include "reshard/specs/stages/stage_plan.h"

namespace reshard {

/// Removes from the files of each pipeline rank the tensors that belong to other pipeline ranks: names that its
/// metadata does not list and that of another rank does. optimum-neuron with several stages saves every parameter of
/// the model in every file; those of other stages are uninitialised memory (seen in files that it wrote). Names that no
/// metadata lists stay, for others to refuse. Does nothing without metadata.
/// \returns how many tensors were removed, over all files.
/// \throws Error kBadInput if a file is left with none, or if the metadata of two pipeline ranks seem swapped.
std::uint64_t remove_other_stages(ShardedCheckpoint& checkpoint);

/// The same for tied parameters that no metadata lists, as a parameter has one name there: with several pipeline ranks,
/// the last one alone has them.
std::uint64_t remove_other_stages(ShardedCheckpoint& checkpoint, const std::vector<TiedParameter>& tied);

/// What the user should know of them; nothing if there were none.
std::optional<std::string> other_stages_note(const ShardedCheckpoint& checkpoint);

}  // namespace reshard
