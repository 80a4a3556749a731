#pragma once

#include <vector>

#include "reshard/base/numbered_name.h"
#include "reshard/formats/common/container.h"
#include "reshard/formats/common/container_keys.h"

namespace reshard {

/// Names of the files that save_distributed of torch's HuggingFaceStorageWriter writes
/// (torch/distributed/checkpoint/hf_storage.py and _hf_utils.py, 2.8 and 2.9). Ranks and parts are counted from 1. The
/// tensors of the model are distributed over the parts; each rank writes its slices to a separate file per part.
inline constexpr NumberedName kDcpShardName("shard-{rank:5}-model-{part:5}-of-{parts:5}.safetensors");

/// Whether the metadata of a file records offsets of its tensors.
bool has_saved_offsets(const FileMetadata& metadata);

/// Returns the offset of each tensor of `file` in its logical tensor, from the metadata: one per tensor, with the same
/// number of dims.
/// \throws Error kBadInput if the metadata is missing, damaged, or lacks a tensor.
std::vector<Dims> read_saved_offsets(const Container& file);

}  // namespace reshard
