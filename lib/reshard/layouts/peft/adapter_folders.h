#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/layouts/core/layout.h"

namespace reshard {

/// An adapter as PEFT saves it: one file beside its adapter_config.json.
inline constexpr const char* kAdapterSafetensorsFile = "adapter_model.safetensors";
inline constexpr const char* kAdapterPytorchFile = "adapter_model.bin";

/// The adapter that PEFT saves in a directory itself, and not in a folder of its name.
inline constexpr const char* kDefaultAdapter = "default";

/// Shards of adapters, beside each other in a checkpoint's directory: adapter_NAME/adapter_shards (optimum-neuron).
inline constexpr std::string_view kAdapterFolderPrefix = "adapter_";
inline constexpr const char* kAdapterShardsFolder = "adapter_shards";

/// "adapter_NAME".
inline std::filesystem::path adapter_folder(const std::string& name) {
  return std::string(kAdapterFolderPrefix) + name;
}

/// The shards of one LoRA adapter.
struct AdapterFolder {
  std::string name;    // as its folder says; empty if that is not called adapter_NAME
  FoundLayout shards;  // `directory` is where adapter_config.json is
  bool alone = false;  // the path that was given is this one adapter's
};

/// The adapters meant by `path`: its own if it is adapter_NAME or adapter_shards, else those of all its adapter_NAME
/// folders, sorted by name. Empty if there are none.
std::vector<AdapterFolder> find_adapter_folders(Files& files, const std::filesystem::path& path);

/// The same, but none where the shards of a model are in `path`: then it means the model.
/// \throws Error kBadInput as find_shards does.
std::vector<AdapterFolder> adapters_meant(Files& files, const std::filesystem::path& path);

/// The same, but none where whole weights are in `path`, a model's or an adapter's: then it means those, for whoever
/// reads any checkpoint.
std::vector<AdapterFolder> adapters_to_read(Files& files, const std::filesystem::path& path);

}  // namespace reshard
