#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "reshard/formats/format.h"
#include "reshard/formats/hf_index.h"
#include "reshard/io/files.h"
#include "reshard/layouts/layout.h"
#include "reshard/layouts/tensor_map.h"

namespace reshard {

/// Of layouts that spread tensors over files by size.
inline constexpr LayoutOption kMaxShardSize{
    "max-shard-size", LayoutOption::Type::kSize, "Tensor bytes in one file at most", {}, "5GB"};

/// Tensor bytes in one file, at most, unless a request says otherwise.
inline constexpr std::uint64_t kMaxShardBytes = 5'000'000'000;

/// The Hugging Face checkpoint that holds `logical`, in its order, in files of at most `max_file_bytes` of tensors (a
/// larger tensor gets a file to itself), as huggingface_hub's split_torch_state_dict_into_shards cuts it. Paths are
/// file names. `format` is not xser.
TensorMap hf_target_map(std::span<const LogicalTensor> logical, std::uint64_t max_file_bytes,
                        Format format = Format::kSafetensors);

/// The index of such a map.
HfIndex index_of(const TensorMap& target);

}  // namespace reshard
