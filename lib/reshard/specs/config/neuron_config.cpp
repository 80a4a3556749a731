#include "reshard/specs/config/neuron_config.h"

#include <string>
#include <utility>

#include "reshard/base/json.h"

namespace reshard {
namespace {

constexpr const char* kSettings = "neuron_config";

/// Keys of NxD Inference's InferenceConfig and its subclasses that no config of transformers contains.
constexpr const char* kOwnKeys[] = {kSettings,       "fused_spec_config",   "metadata",
                                    "attribute_map", "num_cores_per_group", "moe_fused_nki_kernel_enabled"};
constexpr const char* kPaddedSizes[] = {"hidden_size", "intermediate_size"};  // "original_…" is the size before padding
constexpr const char* kExpertsSize = "moe_intermediate_size";
constexpr const char* kExpertsPadding = "moe_intermediate_pad_size";

/// Restores the original sizes, which some families store under another key.
void restore_sizes(Json& config) {
  for (const char* key : kPaddedSizes) {
    const auto original = config.find(std::string("original_") + key);
    if (original == config.end()) continue;
    config[key] = *original;
    config.erase(std::string("original_") + key);
  }
  const auto size = config.find(kExpertsSize), padding = config.find(kExpertsPadding);
  if (padding == config.end()) return;
  if (size != config.end() && size->is_number_unsigned() && padding->is_number_unsigned() && *padding <= *size)
    *size = size->get<std::uint64_t>() - padding->get<std::uint64_t>();
  config.erase(kExpertsPadding);
}

}  // namespace

bool has_model_config(const Json& json) {
  return json.is_object() && json.contains(kSettings) && json.at(kSettings).is_object() && json.contains("model_type");
}

const Json& neuron_settings(const Json& json) {
  return json.is_object() && json.contains(kSettings) && json.at(kSettings).is_object() ? json.at(kSettings) : json;
}

bool neuron_flag(const Json& settings, std::string_view name, const std::filesystem::path& path) {
  const JsonObject object(settings, path);
  const std::string key(name);
  return object.has(key) && !object.at(key).is_null() && object.bool_at(key);
}

Json model_config_of(const Json& json) {
  Json config = json;
  for (const char* key : kOwnKeys) config.erase(key);
  for (Json& part : config)  // text_config has its own settings
    if (part.is_object()) part.erase(kSettings);
  restore_sizes(config);
  const Json& settings = neuron_settings(json);
  if (!config.contains("torch_dtype") && !config.contains("dtype") && settings.contains("torch_dtype"))
    config["torch_dtype"] = settings.at("torch_dtype");
  return config;
}

}  // namespace reshard
