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
/// Keys of config.json under which a larger model has the configuration of its language model.
inline constexpr std::array kTextConfigs = {"text_config", "llm_config", "language_config", "thinker_config"};
inline constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{4} << 20;

/// A model's config.json, as transformers writes it. Its quantization_config may be from a file beside it, where
/// AutoGPTQ, AutoAWQ and ModelOpt have it.
struct ModelConfig {
  std::filesystem::path path;
  std::shared_ptr<const Json> json;  // an object
  std::string model_type;            // empty where config.json has none
  /// The levels of a larger model's config.json that say whether embeddings are tied, the outermost first.
  std::vector<std::pair<std::string, bool>> ties{};
};

/// The file in `directory` that has the model's config: config.json, else a neuron_config.json that NxD Inference wrote.
/// Returns std::nullopt if the directory has neither.
std::optional<std::filesystem::path> find_model_config(Files& files, const std::filesystem::path& directory);

/// \throws Error kBadInput if the file is missing, is no JSON object, or has a model_type that is no text.
ModelConfig read_model_config(Files& files, const std::filesystem::path& directory);

/// That of a model without config.json: no keys, no path.
ModelConfig empty_model_config(std::string model_type);

/// The same of a file of any name. A neuron_config.json is read as the config.json that it amounts to.
ModelConfig read_model_config_file(Files& files, const std::filesystem::path& file);

}  // namespace reshard
