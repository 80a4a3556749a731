#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/layouts/core/layout.h"
#include "reshard/specs/peft/adapter_config.h"

namespace reshard {

/// Folders of adapters' shards in a checkpoint's directory: adapter_NAME/adapter_shards (optimum-neuron).
inline constexpr std::string_view kAdapterFolderPrefix = "adapter_";
inline constexpr const char* kAdapterShardsFolder = "adapter_shards";

/// Returns "adapter_NAME".
inline std::filesystem::path adapter_folder(const std::string& name) {
  return std::string(kAdapterFolderPrefix) + name;
}

/// The shards of one LoRA adapter.
struct AdapterFolder {
  std::string name;    // from its folder; empty if the folder is not called adapter_NAME
  FoundLayout shards;  // `directory` contains adapter_config.json
  bool alone = false;  // the given path refers to this adapter only
};

/// Returns the adapters that `path` refers to: one adapter if `path` is adapter_NAME or adapter_shards, otherwise those
/// in all its adapter_NAME folders, sorted by name. Empty if there are no adapters.
std::vector<AdapterFolder> find_adapter_folders(Files& files, const std::filesystem::path& path);

/// Like find_adapter_folders, but empty if `path` contains the shards of a model, to which it then refers.
/// \throws Error kBadInput like find_shards.
std::vector<AdapterFolder> adapters_meant(Files& files, const std::filesystem::path& path);

/// Like adapters_meant, but empty if `path` contains whole weights of a model or an adapter, to which it then refers.
/// For reading any checkpoint.
std::vector<AdapterFolder> adapters_to_read(Files& files, const std::filesystem::path& path);

}  // namespace reshard
