#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reshard/formats/common/format.h"
#include "reshard/layouts/map/tensor_map.h"

namespace reshard {

/// A tensor to be written, and the boxes of logical tensors that it contains.
struct PlacedTensor {
  struct Part {
    std::uint32_t logical;  // index into TensorMap::logical
    Box box;
    Dims begin;  // where the box begins in `stored`
  };
  StoredTensor stored;      // its name, dtype, shape and kind
  std::vector<Part> parts;  // empty if the caller adds its pieces afterwards
};

/// A state dict to be written: the tensors of one rank, or of one file of a Hugging Face checkpoint.
struct TargetContainer {
  Format format = Format::kSafetensors;
  std::filesystem::path path;  // relative to the output directory
  std::uint32_t tp_rank = 0;
  std::uint32_t pp_rank = 0;
  std::uint32_t ep_rank = 0;
  std::vector<PlacedTensor> tensors;
  std::vector<TensorAlias> aliases;  // safetensors has none
  std::optional<RankRecord> record;  // recorded in its files; std::nullopt for a whole model's
  /// With kPytorch or kXser: the saved object, if it is not a state dict. `tensors` are in its order, and only reshard
  /// uses their names. Files share it.
  std::shared_ptr<const SavedValue> structure;
  std::vector<std::string> objects;  // with as_items: the objects after the tensors, as torch.save writes them
  bool has_info = true;              // with kXser: PATH.info.pt is written
  bool shares_tensors = false;       // with kXser: what expert-parallel ranks share is in files of the first alone
  FileMetadata metadata;             // with kSafetensors: TargetFile::metadata
  bool as_items = false;             // with kPytorch: saves each tensor separately, like torch.distributed.checkpoint
};

inline constexpr std::uint32_t kStoredElsewhere = UINT32_MAX;

/// Adds the container's files and the pieces of its tensors to a target. There is one file; xser has one per tensor,
/// and its reference and info files are added to `text_files`. \returns the index of each tensor in
/// `TensorMap::stored`, in the order of `container.tensors`; kStoredElsewhere for tensors that expert-parallel ranks
/// share, which NxD stores for the first of them only.
/// \throws Error kUnsupported if the format cannot contain a tensor.
std::vector<std::uint32_t> add_target_container(TargetMap& map, TargetContainer container);

/// Merges safetensors files that have the same path. The names of their tensors must differ.
void merge_files(TargetMap& map);

/// Returns the bytes of a target's file that are not tensor data. They are rebuilt on each call: for ten thousand
/// layers on a hundred ranks, keeping them would take most of the memory. `crcs` are the CRCs of all tensors of the
/// map, in the order of TensorMap::stored; without them, parts that contain a CRC are not final.
std::vector<FilePart> target_parts(const TargetMap& map, const TargetFile& file,
                                   std::span<const std::uint32_t> crcs = {});

/// Whether the parts depend on the tensors' CRCs.
bool needs_crcs(const TargetFile& file);

}  // namespace reshard
