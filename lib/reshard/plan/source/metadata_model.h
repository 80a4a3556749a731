#pragma once

#include <string>

#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/core/layout.h"

namespace reshard {

/// The description that the metadata of a checkpoint of ranks amounts to.
/// \throws Error kUnsupported as describe_metadata.
std::string description_of_metadata(const Checkpoint& checkpoint);

/// Makes the model of a checkpoint of ranks from their metadata, if nothing else describes it and `target` needs one.
/// Pipeline stages stay as they are, unless `target` asks for others.
/// \throws Error kUnsupported as describe_metadata; kBadInput if `target` asks for stages that the
/// metadata does not describe.
void take_metadata_model(Checkpoint& checkpoint, TargetRequest& target);

}  // namespace reshard
