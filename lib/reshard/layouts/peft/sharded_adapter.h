#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/peft/adapter_folders.h"
#include "reshard/specs/peft/adapter_metadata.h"

namespace reshard {

/// Reads headers and metadata of one adapter's shards. The logical tensors are those of PEFT, for separate linears.
/// Reads no tensor data except lora_B of fused linears whose config records LoraFuse::kExact (holds_stacked), because
/// shapes alone do not show whether the adapter was trained afterwards.
/// \param metadata  Reads the metadata; the same for all adapters of a directory.
/// \throws Error kBadInput, kUnsupported or kIo.
Checkpoint read_sharded_adapter(Files& files, const AdapterFolder& folder, const ReadContext& context,
                                AdapterMetadataReader& metadata);

/// Adds the description of the adapter in `directory` to `checkpoint`, which was read from PEFT's single file.
void describe_peft_adapter(Checkpoint& checkpoint, const std::string& name, const std::filesystem::path& directory);

/// Joins checkpoints of one adapter each, at least one. Tensor names get the prefix of their adapter; only the default
/// adapter has none.
Checkpoint join_adapters(const std::filesystem::path& path, std::vector<Checkpoint> checkpoints);

}  // namespace reshard
