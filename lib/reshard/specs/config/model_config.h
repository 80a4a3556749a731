#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reshard/base/json_fwd.h"
#include "reshard/io/files.h"

namespace reshard {

inline constexpr const char* kConfigFile = "config.json";
/// Keys of config.json under which a larger model stores the configuration of its language model.
inline constexpr std::array kTextConfigs = {"text_config", "llm_config", "language_config", "thinker_config"};
inline constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{4} << 20;

/// A model's config.json, as transformers writes it. quantization_config may come from a sibling file, as AutoGPTQ,
/// AutoAWQ and ModelOpt write it.
struct ModelConfig {
  std::filesystem::path path;
  std::shared_ptr<const Json> json;  // a JSON object
  std::string model_type;            // empty if config.json does not declare it
  /// Levels of a larger model's config.json that declare whether embeddings are tied, outermost first.
  std::vector<std::pair<std::string, bool>> ties{};
};

/// Returns the file in `directory` with the model's config: config.json, or a neuron_config.json that NxD Inference
/// wrote; std::nullopt if neither exists.
std::optional<std::filesystem::path> find_model_config(Files& files, const std::filesystem::path& directory);

/// \throws Error kBadInput if the file is missing or is not a JSON object, or if its model_type is not a string.
ModelConfig read_model_config(Files& files, const std::filesystem::path& directory);

/// Returns the config of a model without config.json: no keys, no path.
ModelConfig empty_model_config(std::string model_type);

/// Same as read_model_config for a file of any name. Converts a neuron_config.json to a config.json.
ModelConfig read_model_config_file(Files& files, const std::filesystem::path& file);

}  // namespace reshard
