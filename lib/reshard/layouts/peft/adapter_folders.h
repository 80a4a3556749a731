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

}  // namespace reshard
