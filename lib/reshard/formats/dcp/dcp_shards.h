#pragma once

#include <vector>

#include "reshard/base/numbered_name.h"
#include "reshard/formats/common/container.h"

namespace reshard {

/// The names of files that torch's HuggingFaceStorageWriter writes with save_distributed
/// (torch/distributed/checkpoint/hf_storage.py and _hf_utils.py, 2.8 and 2.9). Rank and part are counted from 1. Parts
/// are the files that the model's tensors are spread over; each rank has a file of its share of each.
inline constexpr NumberedName kDcpShardName("shard-{rank:5}-model-{part:5}-of-{parts:5}.safetensors");

/// Whether the metadata of `file` says where its tensors begin.
bool has_saved_offsets(const Container& file);

/// Where each tensor of such a file begins in the whole one, by its metadata: one per tensor of `file`, of as many
/// dims.
/// \throws Error kBadInput if the metadata is missing, damaged, or does not know a tensor.
std::vector<Dims> read_saved_offsets(const Container& file);

}  // namespace reshard
