#pragma once

#include <string>

#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/plan/job/request.h"

namespace reshard {

/// Returns a family description derived from the metadata of a sharded checkpoint.
/// \throws Error kUnsupported as describe_metadata.
std::string description_of_metadata(const Checkpoint& checkpoint);

/// Builds the model of a sharded checkpoint from its metadata, if nothing else describes it and `target` needs one.
/// Keeps the pipeline stages unless `target` has others.
/// \throws Error kUnsupported as describe_metadata; kBadInput if `target` has stages that the metadata does not
/// describe; kUsage if the source has virtual stages and `target` has no stages.
void take_metadata_model(Checkpoint& checkpoint, TargetRequest& target);

/// Whether the adapters are split for a base model, which the request names.
bool has_base_model(const Request& request, const Checkpoint& source);

/// Sets the model of `source` to the base model that splits its adapters, if the request names one. Reads the
/// adapter_config.json of each adapter, unless its shards keep their partition. The text that names fused linears is
/// replaced by one that names the separate linears.
/// \throws Error kBadInput for a config.json or an adapter_config.json that is missing or damaged; kUnsupported.
void read_adapter_configs(Files& files, const Request& request, Checkpoint& source);

}  // namespace reshard
