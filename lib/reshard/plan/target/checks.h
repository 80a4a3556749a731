#pragma once

#include <filesystem>
#include <string>

#include "reshard/layouts/core/checkpoint.h"
#include "reshard/plan/job/request.h"

namespace reshard {

/// An option of the request that is about states of the optimizer, which go along where it is given; empty if none is.
std::string state_option(const TargetRequest& target);

/// An option of the request that is about ranks; empty if none is.
std::string rank_option(const TargetRequest& target);

/// What is wrong with `with_optimizer` for the target's layout, and for what was read.
/// \throws Error kUsage if the layout has no place for states, or the source's none that are read; kBadInput if there are
/// none.
void validate_takes_states(const SourceRequest& source, const Layout& target);
void validate_has_states(const SourceRequest& request, const Checkpoint& checkpoint);

/// \throws Error kBadInput if there are no tensors of a model.
void validate_has_tensors(const Checkpoint& checkpoint);

/// \throws Error kBadInput if the source's tensors have another program's names, and the target's are the model's own.
void validate_names(const Checkpoint& checkpoint, const Layout& target);

/// Notes that a target that could have the optimizer's states does not get them.
void note_states_left(Checkpoint& checkpoint, const Layout& target);

/// The outputs do not go into the shards folder that is read.
/// \throws Error kUsage.
void validate_outside(Files& files, const std::filesystem::path& output_directory, const Checkpoint& source);

}  // namespace reshard
