#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/peft/adapter_folders.h"

namespace reshard {

/// Reads the shards of one adapter, headers and metadata: its logical tensors are PEFT's, those of separate linears.
/// The only tensor data that is read is lora_B of fused linears, and only where a config says that LoraFuse::kExact
/// made them (holds_stacked): shapes alone do not tell whether the adapter was trained since.
/// \throws Error kBadInput, kUnsupported or kIo.
Checkpoint read_sharded_adapter(Files& files, const AdapterFolder& folder, const ReadContext& context);

/// Describes the adapter in PEFT's one file, which `checkpoint` is about, in `directory`.
void describe_peft_adapter(Checkpoint& checkpoint, const std::string& name, const std::filesystem::path& directory);

/// Reads the adapters that PEFT saved in `directories`, headers alone: the first directory's own is called "default",
/// those of the others as their directories are, and those of folders in them as these are.
/// \throws Error kBadInput for a directory without an adapter; kUsage for two of one name.
Checkpoint read_peft_adapters(Files& files, const std::vector<std::filesystem::path>& directories);

/// Makes one checkpoint of several that each have one adapter; there is at least one. The names of tensors get the
/// prefix of their adapter, which only the default adapter does not have.
Checkpoint join_adapters(const std::filesystem::path& path, std::vector<Checkpoint> checkpoints);

/// \throws Error kUsage that lists `adapters` of `path` and says to give one of them.
[[noreturn]] void refuse_several_adapters(const std::filesystem::path& path,
                                          const std::vector<AdapterFolder>& adapters);

}  // namespace reshard
