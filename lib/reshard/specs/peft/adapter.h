#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "reshard/specs/peft/adapter_config.h"
#include "reshard/specs/peft/fused_adapter_config.h"

namespace reshard {

/// A LoRA adapter in a checkpoint, besides its tensors.
struct Adapter {
  std::string name;            // as its folder or its metadata says
  std::string prefix;          // of its tensors' names in a checkpoint of several adapters, "NAME/"; may be empty
  std::filesystem::path path;  // of its tensors: PEFT's file, or the shards folder
  AdapterConfig config;        // its path, which need not exist; the rest is set if a target needs it
  std::string separate_text;   // replaces the text of the file `config.path`, which is about fused linears
  std::vector<AdaptedModule> modules;  // that it has, with their names in `config`
  std::vector<StageMetadata> stages;   // of shards: what the files of each pipeline rank hold; else empty
};

}  // namespace reshard
