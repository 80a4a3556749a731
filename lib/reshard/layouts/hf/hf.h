#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "reshard/formats/common/format.h"
#include "reshard/formats/safetensors/hf_index.h"
#include "reshard/io/files.h"
#include "reshard/layouts/core/expert_stacks.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/map/tensor_map.h"

namespace reshard {

/// The layout of Hugging Face directories, whose names of tensors are those of the model.
const Layout& hf_layout();

/// Option of layouts that distribute tensors over files by size.
inline constexpr LayoutOption kMaxShardSize{
    "max-shard-size", LayoutOption::Type::kSize, "Maximum tensor bytes per file", {}, "5GB"};

inline constexpr const char* kExpertForms[] = {"auto", "packed", "separate"};
inline constexpr LayoutOption kExperts{"experts", LayoutOption::Type::kChoice,
                                       "Experts of a layer in one tensor, as in the memory of Transformers 5 (packed), "
                                       "or one tensor per expert (separate); auto: as usual for the model",
                                       kExpertForms};

/// Default of kMaxShardSize.
inline constexpr std::uint64_t kMaxShardBytes = 5'000'000'000;

/// Returns the map of a Hugging Face checkpoint that stores `logical` as `entries`, in this order. Each file contains
/// at most `max_file_bytes` of tensors, or a single larger tensor, as in huggingface_hub's
/// split_torch_state_dict_into_shards. Paths are file names.
/// \param format  Any format except xser.
/// \param stem    see hf_file_name.
/// \param metadata  TargetContext::metadata: each safetensors file gets the keys of the files that its tensors are from.
TargetMap hf_target_map(std::span<const LogicalTensor> logical, const std::vector<OutputTensor>& entries,
                        std::uint64_t max_file_bytes, Format format = Format::kSafetensors,
                        const std::string& stem = {},
                        std::span<const std::shared_ptr<const FileMetadata>> metadata = {});
TargetMap hf_target_map(std::span<const LogicalTensor> logical, std::uint64_t max_file_bytes,
                        Format format = Format::kSafetensors);

/// Returns the index of such a map.
HfIndex index_of(const TargetMap& target);

}  // namespace reshard
