#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/formats/common/format.h"
#include "reshard/io/files.h"
#include "reshard/specs/parallel/transformation_specs.h"

namespace reshard {

inline constexpr const char* kAdapterConfigFile = "adapter_config.json";
/// Weights of an adapter as PEFT saves them, next to adapter_config.json. PEFT loads the first that exist.
inline constexpr FormatRow kPeftWeights[] = {{Format::kSafetensors, "adapter_model.safetensors"},
                                             {Format::kPytorch, "adapter_model.bin"}};
bool is_peft_weights_name(std::string_view name);
/// Next to a sharded adapter: its adapter_config.json before entries for fused linears were added.
inline constexpr const char* kUnfusedConfigFile = "adapter_config.unfused.json";

/// Characters that make a key of rank_pattern or alpha_pattern a regular expression. Excludes dots, which are common in
/// names.
inline constexpr std::string_view kPatternOperators = "^$*+?()[]{}|\\";
bool is_plain_pattern(std::string_view key);

/// PEFT's get_pattern_key: re.match(rf"(.*\.)?({key})$", module). `path` is for errors.
/// \throws Error kUnsupported if the key is not a regular expression, or Pattern does not support it.
bool pattern_matches(const std::string& key, const std::string& module, const std::filesystem::path& path);

/// How to combine the lora_A of linears that are fused into one.
enum class LoraFuse : std::uint8_t {
  kMean,   // their mean, like the reference
  kExact,  // stacked; each lora_B is applied only to its own rows
  kSame,   // the one that all of them have; others cannot be fused
};

/// The parts of a PEFT adapter's adapter_config.json that determine its ranks and scales (peft/tuners/lora/config.py).
/// Modules have their names in the wrapped model: "model.layers.0.mlp.up_proj".
struct AdapterConfig {
  std::filesystem::path path;
  std::string text;
  std::uint64_t r = 8;
  std::optional<double> lora_alpha;  // PEFT's default: 8
  bool use_rslora = false;
  std::vector<std::pair<std::string, std::uint64_t>> rank_pattern;  // regular expressions, in file order
  std::vector<std::pair<std::string, double>> alpha_pattern;
  std::vector<std::string> modules_to_save;
  std::vector<std::string> target_parameters;  // parameters of packed experts, "mlp.experts.gate_up_proj"

  /// Uses the first pattern that matches, as PEFT does.
  std::uint64_t rank_of(const std::string& module) const;
  double alpha_of(const std::string& module) const;
  /// Whether the adapter contains a trained copy of the module.
  bool saves(const std::string& module) const;
};

/// \param path  path of the file, for errors.
/// \throws Error kBadInput; kUnsupported for adapters other than LoRA.
AdapterConfig parse_adapter_config(std::string text, const std::filesystem::path& path);
/// \throws Error like parse_adapter_config.
AdapterConfig read_adapter_config(Files& files, const std::filesystem::path& path);

/// A fused linear that an adapter adapts.
struct FusedLayer {
  std::string module;                // "model.layers.0.mlp.gate_up_proj"
  std::vector<std::string> linears;  // "model.layers.0.mlp.gate_proj", …
};

/// Returns the fused linears in the specs of a stage, without PEFT's prefix.
std::vector<FusedLayer> fused_layers(const StageMetadata& metadata);

/// Sets the stacked ranks of the specs to the ranks of the linears in the config.
void stack_ranks(StageMetadata& metadata, const AdapterConfig& config);

}  // namespace reshard
