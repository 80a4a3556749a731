// LoRA adapters in the files of ranks: alone, or in the state dict of their base model.
#pragma once

#include <string>
#include <vector>

#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"

namespace reshard {

inline constexpr const char* kLoraParts[] = {"base", "adapter"};
/// Chooses between a base model and its adapter if the same files contain both.
inline constexpr LayoutOption kLoraPart{
    .name = "lora",
    .type = LayoutOption::Type::kChoice,
    .help = "",
    .choices = kLoraParts,
    .default_value = kLoraParts[0],
    .of_source = true,
    .source_help = "What to read from rank files with a LoRA adapter and its base model: base or adapter",
    .only_of_source = true};

/// Leaves the part of `shards`, which have no metadata, that the options in `context` choose: the base model, with its
/// own names, or the adapter, for which `checkpoint` then contains an Adapter with its settings. Files that contain an
/// adapter alone need no choice. No-op for shards without adapters, and for models that have adapters of their own.
/// \throws Error kBadInput if the chosen part or the settings are missing.
void choose_lora_part(Files& files, const ReadContext& context, ShardedCheckpoint& shards, Checkpoint& checkpoint);

/// Completes `checkpoint` with the only adapter that choose_lora_part left in it, whose shards are now explained.
void finish_lora(Files& files, const ShardedCheckpoint& shards, Checkpoint& checkpoint);

/// Returns the fused linears that the adapter in `shards` adapts.
/// \throws Error kUnsupported, naming the tensor, if a fused linear has tensors that its spec does not explain.
std::vector<FusedLayer> adapted_layers(const ShardedCheckpoint& shards);

/// Returns the modules of the adapter in `map`. `fused` are the fused linears for which its config has ranks and
/// scales.
std::vector<AdaptedModule> adapted_modules(const SourceMap& map, const std::vector<FusedLayer>& fused);

/// Adds `adapter`, whose shards are `shards`, to `checkpoint`; for `fused` see adapted_modules.
/// \param omitted  the prefix of PEFT's names that the files omit.
/// \throws Error kBadInput, naming the tensor.
void add_adapter(Checkpoint& checkpoint, const ShardedCheckpoint& shards, Adapter adapter,
                 const std::vector<FusedLayer>& fused, const std::string& omitted = {});

}  // namespace reshard
