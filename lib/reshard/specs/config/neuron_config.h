#pragma once

#include <filesystem>
#include <string_view>

#include "reshard/base/json_fwd.h"

namespace reshard {

/// Config of a model that NxD Inference or optimum-neuron compiled, next to the folder of its weights. NxD Inference
/// writes the model's config.json with its settings added; optimum-neuron writes only the settings.
inline constexpr const char* kNeuronConfigFile = "neuron_config.json";

/// Whether `json`, the content of a neuron_config.json, contains a model's config.
bool has_model_config(const Json& json);

/// Returns the settings in `json`.
const Json& neuron_settings(const Json& json);

/// Returns a boolean setting; false if `settings` lacks it. `path` is the file.
/// \throws Error kBadInput for other values.
bool neuron_flag(const Json& settings, std::string_view name, const std::filesystem::path& path);

/// Converts `json` (see has_model_config) to a config.json: removes the keys of NxD Inference and restores the sizes
/// before padding.
Json model_config_of(const Json& json);

}  // namespace reshard
