#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "reshard/formats/pickle/plain_value.h"
#include "reshard/io/files.h"
#include "reshard/specs/peft/adapter_config.h"
#include "reshard/specs/peft/fused_adapter_config.h"

namespace reshard {

/// Returns the settings that NxD stores with an adapter in a rank file (kLoraConfigKey), as JSON text; std::nullopt if
/// the file has none. NxD writes the same settings to an adapter_config.json if they are not in its rank files.
/// \throws Error kUnsupported for settings that are not plain values; others like read_torch_file.
std::optional<std::string> saved_lora_config(Files& files, const std::filesystem::path& path);

/// Returns PEFT's adapter_config.json for these settings. Names of modules stay those of the trainer.
/// \param path  the file with the settings, for errors.
/// \throws Error kBadInput.
std::string peft_config_text(const std::string& settings, const std::filesystem::path& path);

/// Returns the text of `config` with the names of `modules` in place of target_modules that are a pattern, which may
/// match only the trainer's names.
std::string named_targets(const AdapterConfig& config, const std::vector<AdaptedModule>& modules);

/// Returns a function that tests whether NxD adds a tensor of the base model to the adapter: one whose name contains an
/// entry of modules_to_save, or a bias if all biases were trained.
std::function<bool(const std::string& name)> added_tensors(const AdapterConfig& config);

/// Returns the settings to store with an adapter. `modules` are the adapted modules, with the trainer's names.
/// \throws Error kUnsupported unless all modules have the same rank and lora_alpha.
PlainValue::Dict lora_config_value(const AdapterConfig& config, const std::vector<std::string>& modules);

}  // namespace reshard
