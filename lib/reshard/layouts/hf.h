#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reshard/formats/container.h"
#include "reshard/formats/format.h"
#include "reshard/formats/hf_index.h"
#include "reshard/io/files.h"
#include "reshard/layouts/layout.h"
#include "reshard/layouts/tensor_map.h"

namespace reshard {

/// The format of the weights in a Hugging Face directory: safetensors where both are there, as transformers has it;
/// nothing if neither is.
std::optional<Format> hf_format(Files& files, const std::filesystem::path& directory);

/// Contents of an index other than the places of tensors; notes if it is missing.
struct HfIndexReport {
  std::string metadata;               // HfIndex::metadata
  std::vector<std::string> notes;     // what is odd but harmless, whole sentences
  std::vector<std::string> unlisted;  // files with names of weights that it does not list
};

/// The files of the Hugging Face checkpoint in `directory`, each read and validated, and together held against the
/// index: every named file exists and contains the tensors listed for it, and no others. Without an index, numbered
/// files must be a complete set. `warnings` get what is odd but harmless.
/// \param report  If given, is filled from the index and with a note if numbered files have none.
/// \throws Error kBadInput; kUnsupported.
std::vector<Container> read_hf_checkpoint(Files& files, const std::filesystem::path& directory,
                                          HfIndexReport* report = nullptr);

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
