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
/// Describes the model that was compiled: NxD Inference dequantises its weights, or uses weights that it has quantised.
constexpr const char* kModelQuantization = "quantization_config";
constexpr const char* kPaddedSizes[] = {"hidden_size", "intermediate_size"};  // "original_…" is the size before padding
constexpr const char* kDenseSize = "dense_intermediate_size";
constexpr const char* kExpertsSize = "moe_intermediate_size";
constexpr const char* kExpertsPadding = "moe_intermediate_pad_size";

/// Removes what NxD Inference's modules for experts add: copies of sizes under the names that all families share.
void remove_copies(Json& config) {
  const auto has = [&](const char* key) { return config.contains(key) && !config.at(key).is_null(); };
  if (has("n_shared_experts") && config.at("n_shared_experts") == 0) config.erase("n_shared_experts");
  if (!has("num_local_experts") || !(has("num_experts") || has("n_routed_experts"))) return;
  config.erase("num_local_experts");
  config.erase("intermediate_size");  // a copy of the experts' size; layers without experts have another
  if (!has(kDenseSize)) return;
  config["intermediate_size"] = config.at(kDenseSize);
  config.erase(kDenseSize);
  if (!has("kv_lora_rank")) return;  // attention on the compressed keys and values has one head
  config["num_key_value_heads"] = config.at("num_attention_heads");
  if (has("qk_rope_head_dim")) config["head_dim"] = config.at("qk_rope_head_dim");
}

/// Restores the original sizes, which some families store under another key.
void restore_sizes(Json& config) {
  // The class that stores the original hidden size replaces silu by the sigmoid in it, which its experts compute.
  if (config.contains("original_hidden_size") && config.contains("hidden_act") && config.at("hidden_act") == "sigmoid")
    config["hidden_act"] = "silu";
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
  config.erase(kModelQuantization);
  for (Json& part : config)  // text_config has its own settings
    if (part.is_object())
      for (const char* key : {kSettings, kModelQuantization}) part.erase(key);
  restore_sizes(config);
  remove_copies(config);
  const Json& settings = neuron_settings(json);
  if (!config.contains("torch_dtype") && !config.contains("dtype") && settings.contains("torch_dtype"))
    config["torch_dtype"] = settings.at("torch_dtype");
  return config;
}

}  // namespace reshard
