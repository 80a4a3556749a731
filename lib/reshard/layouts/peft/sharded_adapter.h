#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/peft/adapter_folders.h"
#include "reshard/specs/peft/fused_adapter_config.h"

namespace reshard {

/// What a LoRA adapter is besides its tensors.
struct Adapter {
  std::string name;                    // as its folder or its metadata says
  std::filesystem::path config;        // the adapter_config.json that is about the tensors; need not exist
  std::vector<AdaptedModule> modules;  // that it has, with their names in `config`
  std::vector<StageMetadata> stages;   // of shards: what the files of each pipeline rank hold; else empty
};

/// Reads the shards of one adapter, headers and metadata: its logical tensors are PEFT's, those of separate linears.
/// The only tensor data that is read is lora_B of fused linears, and only where a config says that LoraFuse::kExact
/// made them (holds_stacked): shapes alone do not tell whether the adapter was trained since.
/// \throws Error kBadInput, kUnsupported or kIo.
Checkpoint read_sharded_adapter(Files& files, const AdapterFolder& folder, const ReadContext& context);

/// Describes an adapter in PEFT's one file, which `checkpoint` is about, in `directory`.
void describe_peft_adapter(Checkpoint& checkpoint, const std::filesystem::path& directory);

/// \throws Error kUsage that lists `adapters` of `path` and says to give one of them.
[[noreturn]] void refuse_several_adapters(const std::filesystem::path& path,
                                          const std::vector<AdapterFolder>& adapters);

}  // namespace reshard
