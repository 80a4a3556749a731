#pragma once

#include <filesystem>

#include "reshard/io/files.h"
#include "reshard/layouts/core/layout.h"

namespace reshard {

/// Validates the part of a request for adapter_layout() that can be validated without a model.
/// \throws Error kUsage.
void validate_adapter_request(const TargetRequest& request);

/// Implements Layout::plan for the adapters of `context`: in the layout of whole tensors (PEFT's directories, with one
/// file per adapter) or in adapter_layout() (adapter_NAME/adapter_shards). Ranks are those of the base model. Without
/// one, each adapter keeps the partition of its shards; the caller adds their metadata and adapter_config.json.
/// \throws Error kUsage; kBadInput for tensors that the model does not have; kUnsupported for those that no rank has.
TargetPlan plan_adapters(const TargetRequest& request, const TargetContext& context);

/// Implements Layout::validate_beside: if files of both formats exist, PEFT loads safetensors.
/// \throws Error kBadInput.
void validate_beside_adapters(Files& files, const TargetPlan& plan, const std::filesystem::path& output_directory);

}  // namespace reshard
