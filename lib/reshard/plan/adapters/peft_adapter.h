#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "reshard/formats/common/container.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/specs/model/model.h"
#include "reshard/specs/peft/adapter_config.h"
#include "reshard/specs/peft/peft_stages.h"

namespace reshard {

/// An adapter as PEFT saves it.
struct PeftAdapter {
  std::string name;
  std::filesystem::path directory;
  AdapterConfig config;
  Container file;  // safetensors if the directory contains both formats, as in PEFT
};

/// An adapter to shard. Its linears are separate, not fused.
struct AdapterSource {
  std::string name;
  AdapterConfig config;
  bool config_changed = false;         // its text differs from the file
  std::filesystem::path path;          // file of the tensors, for errors
  std::vector<LogicalTensor> tensors;  // with PEFT's names
  std::string prefix;                  // of their names in the job's source
};

/// Reads the headers of the adapters in `directories`. The adapter in the first directory itself is named "default",
/// those in the other directories after their directory, and those in subfolders after their folder.
/// \throws Error kBadInput for a directory without an adapter; kUsage if two have the same name.
std::vector<PeftAdapter> read_peft_adapters(Files& files, const std::vector<std::filesystem::path>& directories);

/// Validates the adapter's tensors against the model and the config's ranks, and sorts them by the module that they
/// belong to in the rank files, in which `fused` linears are one module. Linears that are fused must either all be
/// adapted in the same way or not at all.
/// \throws Error kBadInput or kUnsupported, naming the tensor or the module.
AdapterContent adapter_content(const AdapterSource& adapter, const Model& model, const std::vector<FusedLayer>& fused);

}  // namespace reshard
