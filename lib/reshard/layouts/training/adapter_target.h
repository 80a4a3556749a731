#pragma once

#include <filesystem>

#include "reshard/io/files.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/training/trainer.h"

namespace reshard {

/// Validates the part of a request for ranks of adapters that can be validated without a model.
/// \throws Error kUsage.
void validate_adapter_request(const TargetRequest& request);

/// Plans the adapters of `context`: in the layout of whole tensors (PEFT's directories, with one file per adapter) or
/// by the plan of another layout, see plan_adapter_ranks.
/// \throws Error like plan_adapter_ranks.
TargetPlan plan_adapters(const TargetRequest& request, const TargetContext& context);

/// Plans the shards of the adapters of `context` in a layout whose trainer has adapters. Ranks are those of the base
/// model. Without one, each adapter keeps the partition of its shards, and the caller adds their metadata. If files do
/// not contain the adapters' settings, the caller adds adapter_config.json.
/// \throws Error kUsage; kBadInput for tensors that the model does not have; kUnsupported for those that no rank has.
TargetPlan plan_adapter_ranks(const Layout& layout, const Trainer& trainer, const TargetRequest& request,
                              const TargetContext& context);

/// Implements Layout::validate_beside: if files of both formats exist, PEFT loads safetensors.
/// \throws Error kBadInput.
void validate_beside_adapters(Files& files, const TargetPlan& plan, const std::filesystem::path& output_directory);

}  // namespace reshard
