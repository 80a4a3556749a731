#pragma once

#include <filesystem>
#include <string>

#include "reshard/layouts/core/checkpoint.h"
#include "reshard/plan/job/request.h"

namespace reshard {

/// Returns an option in the request that applies to optimizer state, and thus requires it; empty if absent.
std::string state_option(const TargetRequest& target);

/// Returns an option in the request that applies to ranks; empty if absent.
std::string rank_option(const TargetRequest& target);

/// Validate `with_optimizer` against the target's layout, and against the checkpoint that was read.
/// \throws Error kUsage if the target's layout cannot contain optimizer state, or if it cannot be read from the
/// source's layout; kBadInput if the source has none.
void validate_takes_states(const SourceRequest& source, const Layout& target);
/// \param option  the option that asks for states
void validate_has_states(const std::string& option, const Checkpoint& checkpoint);

/// \throws Error kBadInput if the checkpoint has no model tensors.
void validate_has_tensors(const Checkpoint& checkpoint);

/// \throws Error kBadInput if a trainer left parameters empty (emptied_parameters), unless `rules` leave them out.
void validate_not_emptied(const Checkpoint& checkpoint, const NameRules& rules);

/// \throws Error kBadInput if the source's tensors have another program's names and the target needs the model's.
void validate_names(const Checkpoint& checkpoint, const Layout& target);

/// Notes that the optimizer's files are left out, if none was opened, and that the target's layout could contain the
/// optimizer.
void note_states_left(Checkpoint& checkpoint, const Layout& target);

/// Validates that the output directory is not inside the shards folder that is read.
/// \throws Error kUsage.
void validate_outside(Files& files, const std::filesystem::path& output_directory, const Checkpoint& source);

/// Validates a request to shard adapters, as far as nothing needs to be read for that.
/// \throws Error kUsage.
void validate_shards_adapters(const Request& request);

/// Validates the request for the adapters of `source`, and notes its options that have no effect on them.
/// \throws Error kUsage, with what would work; kBadInput if their base model is not known, but needed.
void validate_adapters(const Request& request, Checkpoint& source);

}  // namespace reshard
