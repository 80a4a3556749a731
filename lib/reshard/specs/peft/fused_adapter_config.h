#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reshard/specs/peft/adapter_config.h"

namespace reshard {

/// The text of the adapter_config.json for fused linears: `config`'s own where that gives them the right ranks and
/// scales already (but not with kExact), else with entries for them in front of its patterns.
/// \throws Error kBadInput if the linears of one differ in scale, and with kMean if they differ in rank.
std::string fused_config_text(const AdapterConfig& config, const std::vector<FusedLayer>& layers, LoraFuse fuse);

/// Whether fused_config_text takes these linears with kExact: those of each layer have one scale.
bool can_fuse_exactly(const AdapterConfig& config, const std::vector<FusedLayer>& layers);

/// A module of a consolidated adapter.
struct AdaptedModule {
  std::string name;        // "model.layers.0.mlp.gate_proj"
  std::string trained_as;  // "model.layers.0.mlp.gate_up_proj", or `name` where the module was not fused
  std::uint64_t r = 0;     // rows of its lora_A
};

/// The text of the adapter_config.json for the separate linears of an adapter that was trained on fused ones.
struct SeparateConfig {
  std::string text;                      // of `config` itself where nothing needs to change
  std::vector<std::string> unexplained;  // modules whose lora_A has another rank than the config says: left as they are
};

/// Gives each of `modules`, which are all that the adapter has, the rank and the scale that `config` gives what it was
/// trained as; names of fused linears in patterns and target_modules become those of the separate ones.
SeparateConfig separate_config(const AdapterConfig& config, const std::vector<AdaptedModule>& modules);

}  // namespace reshard
