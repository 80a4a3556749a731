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

/// A tensor that a checkpoint of torch.distributed.checkpoint has an entry for: a logical one, or several that another
/// program packs.
struct DcpEntry {
  std::string name;
  DType dtype;
  Dims shape;
  std::vector<std::uint32_t> logical;           // indices into TensorMap::logical; several of a packed entry
  std::uint32_t first = 0;                      // the one that it was made for
  Packing packing;                              // of these
  std::optional<std::size_t> tp_dim;            // that tensor-parallel ranks split
  bool is_object = false;                       // TensorRole::kObject
  const WrittenNames::Entry* packed = nullptr;  // whose tensors `logical` are; null: it is one tensor as it is
};

/// Where a tensor is written: under which name, and where in an entry that is packed.
struct DcpEntryPlace {
  std::string name;
  WrittenNames::Place packed;  // entry is null if the tensor is the entry as it is
};

/// The entry that logical tensor `index` is in.
/// \throws Error as pack.
DcpEntry dcp_entry(const LogicalTensor& tensor, std::uint32_t index, const DcpEntryPlace& place, const Model* model);

/// Puts another tensor into a packed entry.
/// \param first  one that it contains.
/// \throws Error kUnsupported if it has another dtype than that, or another shape than the model's.
void add_to_entry(DcpEntry& entry, const LogicalTensor& tensor, std::uint32_t index, const DcpEntryPlace& place,
                  const LogicalTensor& first);

/// \throws Error kBadInput if tensors of it are missing.
void validate_complete(const DcpEntry& entry);

/// What a file stores of `box` of an entry.
PlacedTensor part_of(const DcpEntry& entry, const Box& box);

/// Makes room for so many parts, where each is one piece.
void reserve_pieces(TargetMap& map, const DcpEntry& entry, std::size_t parts);

}  // namespace reshard
