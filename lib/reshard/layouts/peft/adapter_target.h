#pragma once

#include <filesystem>

#include "reshard/io/files.h"
#include "reshard/layouts/core/layout.h"

namespace reshard {

/// Validates everything about a request for shards of adapters that needs no model. Its layout is adapter_layout().
/// \throws Error kUsage.
void validate_adapter_request(const TargetRequest& request);

/// As Layout::plan, for the adapters of `context`, in the layout of whole tensors (PEFT's directories: the tensors of each
/// adapter in one file) or in adapter_layout() (adapter_NAME/adapter_shards). Ranks are those of the base model. Without
/// one each adapter is split as its shards were, whose metadata and adapter_config.json the caller puts there.
/// \throws Error kUsage; kBadInput for tensors that are not of the model; kUnsupported for those that no rank has.
TargetPlan plan_adapters(const TargetRequest& request, const TargetContext& context);

/// As Layout::validate_beside: PEFT takes safetensors if both files are there.
/// \throws Error kBadInput.
void validate_beside_adapters(Files& files, const TargetPlan& plan, const std::filesystem::path& output_directory);

}  // namespace reshard
