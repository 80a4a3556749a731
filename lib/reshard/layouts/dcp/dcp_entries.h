#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reshard/layouts/map/region.h"
#include "reshard/layouts/map/target_file.h"
#include "reshard/layouts/names/written_names.h"

namespace reshard {

/// An entry of a torch.distributed.checkpoint: one logical tensor, or several that another program packs.
struct DcpEntry {
  std::string name;
  DType dtype;
  Dims shape;
  Dims unpadded;                                // shape without padding
  std::vector<std::uint32_t> logical;           // indices into TensorMap::logical; several if packed
  std::uint32_t first = 0;                      // the tensor that created the entry
  Packing packing;                              // of `logical`
  std::optional<std::size_t> tp_dim;            // the dim that tensor-parallel ranks split
  bool is_object = false;                       // TensorRole::kObject
  const WrittenNames::Entry* packed = nullptr;  // the packed entry; null if the entry is one tensor as it is
};

/// Where a tensor is written: the entry's name, and the tensor's place in a packed entry.
struct DcpEntryPlace {
  std::string name;
  WrittenNames::Place packed;  // `entry` is null if the tensor is not packed
};

/// Returns the entry that contains logical tensor `index`, of a checkpoint for `tp` tensor-parallel ranks.
/// \throws Error as pack.
DcpEntry dcp_entry(const LogicalTensor& tensor, std::uint32_t index, const DcpEntryPlace& place, const Model* model,
                   std::uint32_t tp);

/// Adds another tensor to a packed entry.
/// \param first  A tensor that the entry contains.
/// \throws Error kUnsupported if the dtype differs from that of `first`, or the shape from the model's.
void add_to_entry(DcpEntry& entry, const LogicalTensor& tensor, std::uint32_t index, const DcpEntryPlace& place,
                  const LogicalTensor& first);

/// Validates that a packed entry has all of its tensors.
/// \throws Error kBadInput.
void validate_complete(const DcpEntry& entry);

/// Returns the stored tensor for `box` of an entry, without the pieces of its padding.
PlacedTensor part_of(const DcpEntry& entry, const Box& box);

/// Returns the padding in `box` of an entry, as a box of the stored tensor; std::nullopt if it has none.
std::optional<Box> padding_in(const DcpEntry& entry, const Box& box);

/// Reserves memory for the pieces of `parts` stored tensors if each of them has one piece.
void reserve_pieces(TargetMap& map, const DcpEntry& entry, std::size_t parts);

}  // namespace reshard
