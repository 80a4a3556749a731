#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reshard/layouts/map/region.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/layouts/names/written_names.h"

namespace reshard {

/// A tensor that a checkpoint of torch.distributed.checkpoint has an entry for: a logical one, or experts one behind
/// the other.
struct DcpEntry {
  std::string name;
  DType dtype;
  Dims shape;
  std::vector<std::uint32_t> logical;  // indices into TensorMap::logical; several of a stack
  Packing packing;                     // of these
  std::optional<std::size_t> tp_dim;   // that tensor-parallel ranks split
  bool is_object = false;              // TensorRole::kObject
};

/// The entry that logical tensor `index` is in, under the name of `place`.
/// \param head_dim  of the model.
/// \throws Error kBadInput or kUnsupported where its rows are no heads of pairs.
DcpEntry dcp_entry(const LogicalTensor& tensor, std::uint32_t index, const WrittenNames::Place& place,
                   std::uint64_t head_dim);

/// Puts another expert into a stack.
/// \throws Error kUnsupported if it has another dtype or shape than the stack's.
void add_expert(DcpEntry& stack, const LogicalTensor& tensor, std::uint32_t index, std::uint64_t expert);

/// \throws Error kBadInput if experts of it are missing.
void validate_all_experts(const DcpEntry& stack);

/// What a file stores of `box` of an entry, and what logical tensors have of that: the pieces are not numbered.
struct DcpPart {
  StoredTensor stored;
  std::vector<std::pair<std::uint32_t, Piece>> pieces;
};
DcpPart part_of(const DcpEntry& entry, const Box& box);

/// Makes room for so many parts, where each is one piece.
void reserve_pieces(TensorMap& map, const DcpEntry& entry, std::size_t parts);

}  // namespace reshard
