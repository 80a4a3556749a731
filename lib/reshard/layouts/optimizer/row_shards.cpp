#include "reshard/layouts/optimizer/row_shards.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace reshard {
namespace {

/// The rows of a shard in the local tensor's view.
struct ShardRows {
  std::uint32_t stored;
  std::uint64_t begin;
  std::uint64_t end;  // end of the shard, including padding
};

/// Copies the label and flags of `local` to a shard.
void mark_as(TensorMap& map, std::uint32_t index, const StoredTensor& local) {
  StoredTensor& shard = map.stored[index];
  shard.label = local.label;
  shard.replicated = local.replicated;
  shard.tied = local.tied;
  shard.expert_parallel = local.expert_parallel;
}

std::vector<ShardRows> rows_of(TensorMap& map, const StoredTensor& local, const std::vector<RowShard>& shards) {
  std::vector<ShardRows> rows;
  rows.reserve(shards.size());
  for (const RowShard& shard : shards) {
    mark_as(map, shard.stored, local);
    const StoredTensor& stored = map.stored[shard.stored];
    const std::uint64_t begin = shard.begin_row;
    rows.push_back({shard.stored, begin, stored.shape.empty() ? begin : begin + stored.shape[0]});
  }
  assert(std::is_sorted(rows.begin(), rows.end(),
                        [](const ShardRows& a, const ShardRows& b) { return a.begin < b.begin; }));
  return rows;
}

void add_padding(TensorMap& map, const StoredTensor& local, const std::vector<ShardRows>& shards, TensorRole role) {
  if (local.shape.empty()) return;
  for (const ShardRows& shard : shards) {
    if (shard.end <= local.shape[0]) continue;
    Box box = whole(map.stored[shard.stored].shape);
    box.begin[0] = std::max(shard.begin, local.shape[0]) - shard.begin;
    box.size[0] -= box.begin[0];
    map.add_constant(shard.stored, box, Constant::Kind::kPadding, 0, role);
  }
}

/// Calls `add(stored, box of the logical tensor, its begin in the shard)` for each shard's share of `piece`.
template <typename Add>
void cut(const Piece& piece, const std::vector<ShardRows>& shards, Add&& add) {
  if (piece.box.size.empty()) {
    for (const ShardRows& shard : shards) add(shard.stored, piece.box, piece.stored_begin);
    return;
  }
  const std::uint64_t begin = piece.stored_begin[0], end = begin + piece.box.size[0];
  auto shard =
      std::partition_point(shards.begin(), shards.end(), [&](const ShardRows& one) { return one.end <= begin; });
  for (; shard != shards.end() && shard->begin < end; ++shard) {
    const std::uint64_t from = std::max(begin, shard->begin), to = std::min(end, shard->end);
    if (from >= to) continue;
    Box box = piece.box;
    box.begin[0] += from - begin;
    box.size[0] = to - from;
    Dims stored_begin = piece.stored_begin;
    stored_begin[0] = from - shard->begin;
    add(shard->stored, std::move(box), std::move(stored_begin));
  }
}

}  // namespace

std::uint64_t rows_per_shard(std::uint64_t rows, std::uint64_t count) {
  return rows / count + (rows % count == 0 ? 0 : 1);
}

RowShare row_share(std::uint64_t rows, std::uint64_t count, std::uint64_t number) {
  const std::uint64_t most = rows_per_shard(rows, count);
  const std::uint64_t begin = number >= count ? rows : std::min(rows, most * number);
  return {begin, std::min(most, rows - begin)};
}

Dims row_shard_shape(Dims local, std::uint64_t count) {
  if (!local.empty()) local[0] = rows_per_shard(local[0], count);
  return local;
}

void add_row_shards(TensorMap& map, const TensorMap& local, std::span<const std::vector<RowShard>> shards,
                    const NameOfState& state, TensorRole role) {
  std::vector<std::vector<ShardRows>> rows;
  rows.reserve(shards.size());
  for (std::size_t s = 0; s < shards.size(); ++s) {
    rows.push_back(rows_of(map, local.stored[s], shards[s]));
    add_padding(map, local.stored[s], rows.back(), role);
  }
  for (std::size_t l = 0; l < local.logical.size(); ++l) {
    const LogicalTensor& logical = local.logical[l];
    std::optional<std::uint32_t> index;  // created with its first piece
    for (const Piece& piece : local.pieces[l])
      cut(piece, rows[piece.stored], [&](std::uint32_t stored, Box box, Dims stored_begin) {
        if (const Constant* constant = logical.constant())
          return map.add_constant(stored, {stored_begin, box.size}, constant->kind(), constant->element_bits(), role);
        if (!index) {
          LogicalTensor named = state(logical);
          named.shape = logical.shape;
          index = map.add_logical(named, map.file_of(map.stored[stored]).path);
        }
        map.pieces[*index].push_back({stored, std::move(box), std::move(stored_begin)});
      });
  }
}

}  // namespace reshard
