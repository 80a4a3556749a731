#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "reshard/specs/parallel/mesh.h"
#include "reshard/specs/peft/adapter_config.h"
#include "reshard/specs/peft/fused_adapter_config.h"

namespace reshard {

/// Name of the adapter that PEFT saves in a directory itself instead of in a folder with the adapter's name.
inline constexpr const char* kDefaultAdapter = "default";

/// A LoRA adapter in a checkpoint, besides its tensors.
struct Adapter {
  std::string name;            // name of its folder, or its name in the metadata
  std::string prefix;          // prefix of its tensor names in a checkpoint of several adapters, "NAME/"; may be empty
  std::filesystem::path path;  // PEFT's weights file, or the shards folder
  AdapterConfig config;        // `path` need not exist; other members are set only if a target needs them
  std::string separate_text;   // replaces the text of the file `config.path`, which describes fused linears
  std::vector<AdaptedModule> modules;  // adapted modules, with their names in `config`
  std::vector<StageMetadata> stages;   // if it has shards: contents of each pipeline rank's files
  Mesh mesh;                           // if it has shards
};

}  // namespace reshard
