#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/io/files.h"
#include "reshard/specs/parallel/transformation_specs.h"

namespace reshard {

inline constexpr const char* kAdapterConfigFile = "adapter_config.json";
/// Beside a sharded adapter: its adapter_config.json as it was before fused linears got entries of their own.
inline constexpr const char* kUnfusedConfigFile = "adapter_config.unfused.json";

/// What makes a key of rank_pattern or alpha_pattern more than a name. A dot does not: names are full of them.
inline constexpr std::string_view kPatternOperators = "^$*+?()[]{}|\\";
bool is_plain_pattern(std::string_view key);

/// PEFT's get_pattern_key: re.match(rf"(.*\.)?({key})$", module). `path` is for errors.
/// \throws Error kUnsupported for a key that is no regular expression, or one that Pattern does not support.
bool pattern_matches(const std::string& key, const std::string& module, const std::filesystem::path& path);

/// What becomes of the lora_A of linears that are fused into one.
enum class LoraFuse : std::uint8_t {
  kMean,   // their mean, as the reference takes it
  kExact,  // all of them, stacked; each lora_B meets its own rows alone
};

/// A PEFT adapter's adapter_config.json, as far as it says how large and how strong the adapter is
/// (peft/tuners/lora/config.py). Modules go by their names in the wrapped model: "model.layers.0.mlp.up_proj".
struct AdapterConfig {
  std::filesystem::path path;
  std::string text;
  std::uint64_t r = 8;
  double lora_alpha = 8;
  bool use_rslora = false;
  std::vector<std::pair<std::string, std::uint64_t>> rank_pattern;  // regular expressions, in the file's order
  std::vector<std::pair<std::string, double>> alpha_pattern;
  std::vector<std::string> modules_to_save;
  std::vector<std::string> target_parameters;  // parameters of packed experts, "mlp.experts.gate_up_proj"

  /// The first pattern that matches decides, as in PEFT.
  std::uint64_t rank_of(const std::string& module) const;
  double alpha_of(const std::string& module) const;
  /// Whether the adapter has a trained copy of the module.
  bool saves(const std::string& module) const;
};

/// \param path  where it stands, or is from.
/// \throws Error kBadInput; kUnsupported for adapters other than LoRA's.
AdapterConfig parse_adapter_config(std::string text, const std::filesystem::path& path);
/// \throws Error as parse_adapter_config does.
AdapterConfig read_adapter_config(Files& files, const std::filesystem::path& path);

/// A fused linear that an adapter adapts.
struct FusedLayer {
  std::string module;                // "model.layers.0.mlp.gate_up_proj"
  std::vector<std::string> linears;  // "model.layers.0.mlp.gate_proj", …
};

/// The fused linears that a stage's specs speak of, without what PEFT puts before their names.
std::vector<FusedLayer> fused_layers(const StageMetadata& metadata);

/// Sets the stacked ranks of the specs to what the config says of the linears.
void stack_ranks(StageMetadata& metadata, const AdapterConfig& config);

}  // namespace reshard
