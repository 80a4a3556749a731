#pragma once

#include <string>

#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/core/layout.h"

namespace reshard {

/// Returns a family description derived from the metadata of a sharded checkpoint.
/// \throws Error kUnsupported as describe_metadata.
std::string description_of_metadata(const Checkpoint& checkpoint);

/// Builds the model of a sharded checkpoint from its metadata, if nothing else describes it and `target` needs one.
/// Keeps the pipeline stages unless `target` has others.
/// \throws Error kUnsupported as describe_metadata; kBadInput if `target` has stages that the metadata does not
/// describe; kUsage if the source has virtual stages and `target` has no stages.
void take_metadata_model(Checkpoint& checkpoint, TargetRequest& target);

}  // namespace reshard
