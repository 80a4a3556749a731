#pragma once

#include <filesystem>
#include <string_view>

#include "reshard/base/json_fwd.h"

namespace reshard {

/// The config of a model that NxD Inference or optimum-neuron compiled, next to the folder of its weights. NxD Inference
/// writes the model's config.json with its own settings inside, optimum-neuron the settings alone.
inline constexpr const char* kNeuronConfigFile = "neuron_config.json";

/// Whether `json`, the content of a neuron_config.json, is a model's config, too.
bool has_model_config(const Json& json);

/// The settings in `json`.
const Json& neuron_settings(const Json& json);

/// A setting that is true or false; false if `settings` lacks it. `path` is the file.
/// \throws Error kBadInput for any other value.
bool neuron_flag(const Json& settings, std::string_view name, const std::filesystem::path& path);

/// The config.json that `json` amounts to (has_model_config): without the keys of NxD Inference, and with the sizes that
/// the model had before padding.
Json model_config_of(const Json& json);

}  // namespace reshard
