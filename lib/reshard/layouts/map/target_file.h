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
  std::vector<TensorAlias> aliases;  // safetensors knows none
  std::optional<RankRecord> record;  // what its files say of themselves; std::nullopt for a whole model's
  /// With kPytorch or kXser: what is saved, if it is no state dict; `tensors` are in its order, and their names only
  /// ours. Files share it.
  std::shared_ptr<const SavedValue> structure;
  std::vector<std::string> objects;  // with as_items: what comes after the tensors, as torch.save made it
  bool has_info = true;              // with kXser: PATH.info.pt is written
  bool as_items = false;  // with kPytorch: each tensor saved by itself, as torch.distributed.checkpoint has it
};

/// Adds its files to a target: one, but for xser, whose tensors have a file each, and whose reference and info
/// files join `text_files`, and the pieces of its tensors. \returns the index of each tensor in `TensorMap::stored`, in
/// the order of `container.tensors`.
/// \throws Error kUnsupported if the format cannot contain a tensor.
std::vector<std::uint32_t> add_target_container(TargetMap& map, TargetContainer container);

/// The bytes of a target's file that are not its tensors'. They are built for each call: those of ten thousand layers on
/// a hundred ranks would be most of the memory. `crcs` are those of all tensors of the map, in the order of
/// TensorMap::stored; without them, parts that contain a CRC are not final.
std::vector<FilePart> target_parts(const TargetMap& map, const TargetFile& file,
                                   std::span<const std::uint32_t> crcs = {});

/// Whether the parts depend on the tensors' CRCs.
bool needs_crcs(const TargetFile& file);

}  // namespace reshard
