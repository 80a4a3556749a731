#include "reshard/engine/move/group.h"

#include <algorithm>

#include "reshard/base/error.h"

namespace reshard {
namespace {

/// \tparam Part  Piece or Check.
template <typename Part>
void add_to_group(Group& group, const TensorMap& map, const Part& piece, const LogicalTensor& tensor,
                  const Block& block) {
  const auto shared = intersect(piece.box, block.box);
  if (!shared) return;
  Dims stored_begin = piece.stored_begin;
  Dims block_begin = shared->begin;
  for (std::size_t d = 0; d < stored_begin.size(); ++d) {
    stored_begin[d] += shared->begin[d] - piece.box.begin[d];
    block_begin[d] -= block.box.begin[d];
  }
  const auto ordered = [&](Dims dims) { return permuted(std::move(dims), block.order); };
  auto runs = make_strided_runs(tensor.dtype, ordered(shared->size), ordered(map.stored[piece.stored].strides()),
                                ordered(std::move(stored_begin)), c_strides(ordered(block.box.size)),
                                ordered(std::move(block_begin)));
  if (!runs) throw Error(ErrorKind::kInternal, "a block cuts a packed byte").tensor(tensor.name);
  const std::uint64_t end = runs->a_begin_bytes + runs->a_span_bytes();
  group.begin_bytes = group.runs.empty() ? runs->a_begin_bytes : std::min(group.begin_bytes, runs->a_begin_bytes);
  group.end_bytes = std::max(group.end_bytes, end);
  group.total_bytes += runs->total_bytes();
  group.runs.push_back(std::move(*runs));
}

template <typename Part>
std::vector<Group> groups_of_parts(const TensorMap& map, std::span<const Part> pieces, const LogicalTensor& tensor,
                                   const Block& block) {
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

Dims Block::index_of(std::uint64_t elem) const {
  const Dims size = permuted(box.size, order);
  Dims index(size.size());
  for (std::size_t d = index.size(); d-- > 0; elem /= size[d]) index[d] = elem % size[d];
  index = unpermuted(index, order);
  for (std::size_t d = 0; d < index.size(); ++d) index[d] += box.begin[d];
  return index;
}

std::vector<Group> groups_of(const TensorMap& map, std::span<const Piece> pieces, const LogicalTensor& tensor,
                             const Block& block) {
  return groups_of_parts(map, pieces, tensor, block);
}

std::vector<Group> groups_of(const TensorMap& map, std::span<const Check> checks, const LogicalTensor& tensor,
                             const Block& block) {
  return groups_of_parts(map, checks, tensor, block);
}

}  // namespace reshard
