#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "reshard/formats/common/container.h"

namespace reshard {

/// What the name of a file says: rank and part are counted from 1. Parts are the files that the model's tensors are
/// spread over; each rank has a file of its share of each.
struct DcpShardName {
  std::uint32_t rank = 0;
  std::uint32_t part = 0;
  std::uint32_t parts = 0;
};
std::optional<DcpShardName> dcp_shard_name(std::string_view name);

/// Whether a file of this name is one that torch's HuggingFaceStorageWriter writes with save_distributed
/// (torch/distributed/checkpoint/hf_storage.py and _hf_utils.py, 2.8 and 2.9):
/// "shard-00001-model-00001-of-00002.safetensors".
bool is_dcp_shard_name(std::string_view name);

/// Whether the metadata of `file` says where its tensors begin.
bool has_saved_offsets(const Container& file);

/// Where each tensor of such a file begins in the whole one, by its metadata: one per tensor of `file`, of as many
/// dims.
/// \throws Error kBadInput if the metadata is missing, damaged, or does not know a tensor.
std::vector<Dims> read_saved_offsets(const Container& file);

}  // namespace reshard
