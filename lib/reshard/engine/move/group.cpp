#include "reshard/engine/move/group.h"

#include <algorithm>

#include "reshard/base/error.h"

namespace reshard {
namespace {

/// \tparam Part  Piece or Check.
template <typename Part>
void add_to_group(Group& group, const TensorMap& map, const Part& piece, const LogicalTensor& tensor,
                  const Box& block) {
  const auto shared = intersect(piece.box, block);
  if (!shared) return;
  Dims stored_begin = piece.stored_begin;
  Dims block_begin = shared->begin;
  for (std::size_t d = 0; d < stored_begin.size(); ++d) {
    stored_begin[d] += shared->begin[d] - piece.box.begin[d];
    block_begin[d] -= block.begin[d];
  }
  auto runs = make_strided_runs(tensor.dtype, shared->size, map.stored[piece.stored].strides(), stored_begin,
                                c_strides(block.size), block_begin);
  if (!runs) throw Error(ErrorKind::kInternal, "a block cuts a packed byte").tensor(tensor.name);
  const std::uint64_t end = runs->a_begin_bytes + runs->a_span_bytes();
  group.begin_bytes = group.runs.empty() ? runs->a_begin_bytes : std::min(group.begin_bytes, runs->a_begin_bytes);
  group.end_bytes = std::max(group.end_bytes, end);
  group.total_bytes += runs->total_bytes();
  group.runs.push_back(std::move(*runs));
}

template <typename Part>
std::vector<Group> groups_of_parts(const TensorMap& map, std::span<const Part> pieces, const LogicalTensor& tensor,
                                   const Box& block) {
  std::vector<Group> groups;
  for (std::size_t first = 0; first < pieces.size();) {
    Group group;
    group.stored = pieces[first].stored;
    std::size_t i = first;
    for (; i < pieces.size() && pieces[i].stored == group.stored; ++i)
      add_to_group(group, map, pieces[i], tensor, block);
    first = i;
    if (!group.runs.empty()) groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace

std::vector<Group> groups_of(const TensorMap& map, std::span<const Piece> pieces, const LogicalTensor& tensor,
                             const Box& block) {
  return groups_of_parts(map, pieces, tensor, block);
}

std::vector<Group> groups_of(const TensorMap& map, std::span<const Check> checks, const LogicalTensor& tensor,
                             const Box& block) {
  return groups_of_parts(map, checks, tensor, block);
}

}  // namespace reshard
