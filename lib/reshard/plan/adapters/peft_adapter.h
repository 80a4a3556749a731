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
  Container file;  // safetensors where both are there, as PEFT has it
};

/// An adapter that is to be sharded, of separate linears.
struct AdapterSource {
  std::string name;
  AdapterConfig config;
  bool config_changed = false;         // its text is not that of its file
  std::filesystem::path path;          // of the tensors, for errors
  std::vector<LogicalTensor> tensors;  // by PEFT's names
  std::string prefix;                  // that these have in the job's source
};

/// The adapters in `directories`, headers alone: the first directory's own is called "default", those of the others as
/// their directories are, and those of folders in them as these are.
/// \throws Error kBadInput for a directory without an adapter; kUsage for two of one name.
std::vector<PeftAdapter> read_peft_adapters(Files& files, const std::vector<std::filesystem::path>& directories);

/// Holds the adapter's tensors against the model and the config's ranks, and sorts them: each by the module that it
/// belongs to in the ranks, where `fused` linears are one. Of a fused linear either all are adapted, all alike, or
/// none.
/// \throws Error kBadInput or kUnsupported, naming the tensor or the module.
AdapterContent adapter_content(const AdapterSource& adapter, const Model& model, const std::vector<FusedLayer>& fused);

}  // namespace reshard
