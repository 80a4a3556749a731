#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reshard/base/json_fwd.h"
#include "reshard/specs/peft/adapter_config.h"

namespace reshard {

/// Returns a lora_alpha as people write it: an integer if it is one.
OrderedJson alpha_number(double alpha);

/// Returns the text of the adapter_config.json for fused linears: the text of `config` if it already has the right
/// ranks and scales (except with kExact), otherwise with entries for them before its patterns.
/// \throws Error kBadInput if linears that are fused differ in scale or, with kMean, in rank.
std::string fused_config_text(const AdapterConfig& config, const std::vector<FusedLayer>& layers, LoraFuse fuse);

/// Whether fused_config_text supports these linears with kExact: the linears of each layer have the same scale.
bool can_fuse_exactly(const AdapterConfig& config, const std::vector<FusedLayer>& layers);

/// A module of a consolidated adapter.
struct AdaptedModule {
  std::string name;        // "model.layers.0.mlp.gate_proj"
  std::string trained_as;  // "model.layers.0.mlp.gate_up_proj", or `name` if the module was not fused
  std::uint64_t r = 0;     // rows of its lora_A
};

/// The adapter_config.json for the separate linears of an adapter that was trained on fused ones.
struct SeparateConfig {
  std::string text;                      // equals the text of `config` if nothing has to change
  std::vector<std::string> unexplained;  // modules whose lora_A has another rank than in the config; unchanged
};

/// Sets each of `modules` to the rank and scale that `config` has for the module it was trained as. `modules` are all
/// modules of the adapter. Replaces names of fused linears in patterns and target_modules by those of the separate
/// ones.
SeparateConfig separate_config(const AdapterConfig& config, const std::vector<AdaptedModule>& modules);

}  // namespace reshard
