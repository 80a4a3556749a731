#include "reshard/layouts/states/row_shards.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "reshard/base/error.h"

namespace reshard {
namespace {

/// The dim of a local tensor's view that goes through the rows in its file, in order.
struct RowDim {
  std::size_t dim = 0;
  std::uint64_t per_row = 1;  // indices along the dim in a row: one of stacked experts is a row of their file
};

RowDim row_dim(const StoredTensor& local) {
  if (!local.in_file) return {};
  const View view = local.view();
  const std::uint64_t elems = num_elems(view.shape).value_or(0);
  const std::uint64_t of_row = elems / std::max<std::uint64_t>(1, local.file_shape().front());
  for (std::size_t dim = 0; dim < view.shape.size(); ++dim)
    if (view.strides[dim] != 0 && view.shape[dim] * view.strides[dim] == elems && of_row % view.strides[dim] == 0)
      return {dim, of_row / view.strides[dim]};
  throw Error(ErrorKind::kUnsupported, "its rows are not stored one after another, so its states cannot be shared")
      .tensor(local.name);
}

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

std::vector<ShardRows> rows_of(TensorMap& map, const StoredTensor& local, const RowDim& rows,
                               const std::vector<RowShard>& shards) {
  std::vector<ShardRows> found;
  found.reserve(shards.size());
  for (const RowShard& shard : shards) {
    mark_as(map, shard.stored, local);
    StoredTensor& stored = map.stored[shard.stored];
    const std::uint64_t begin = shard.begin_row * rows.per_row;
    const std::uint64_t size = stored.shape.empty() ? 0 : stored.shape[0] * rows.per_row;
    if (local.in_file) {
      if (stored.in_file)
        throw Error(ErrorKind::kUnsupported, "is not in C order, like the other tensors of its file")
            .in(map.file_of(stored).path)
            .tensor(stored.name);
      View view = local.view();
      view.shape[rows.dim] = size;
      stored.set_view(std::move(view));
    }
    found.push_back({shard.stored, begin, begin + size});
  }
  assert(std::is_sorted(found.begin(), found.end(),
                        [](const ShardRows& a, const ShardRows& b) { return a.begin < b.begin; }));
  return found;
}

void add_padding(TensorMap& map, const StoredTensor& local, std::size_t dim, const std::vector<ShardRows>& shards,
                 TensorRole role) {
  if (local.shape.empty()) return;
  for (const ShardRows& shard : shards) {
    if (shard.end <= local.shape[dim]) continue;
    Box box = whole(map.stored[shard.stored].shape);
    box.begin[dim] = std::max(shard.begin, local.shape[dim]) - shard.begin;
    box.size[dim] -= box.begin[dim];
    map.add_constant(shard.stored, box, Constant::Kind::kPadding, 0, role);
  }
}

/// Calls `add(stored, box of the logical tensor, its begin in the shard)` for each shard's share of `piece`.
template <typename Add>
void cut(const Piece& piece, std::size_t dim, const std::vector<ShardRows>& shards, Add&& add) {
  if (piece.box.size.empty()) {
    for (const ShardRows& shard : shards) add(shard.stored, piece.box, piece.stored_begin);
    return;
  }
  const std::uint64_t begin = piece.stored_begin[dim], end = begin + piece.box.size[dim];
  auto shard =
      std::partition_point(shards.begin(), shards.end(), [&](const ShardRows& one) { return one.end <= begin; });
  for (; shard != shards.end() && shard->begin < end; ++shard) {
    const std::uint64_t from = std::max(begin, shard->begin), to = std::min(end, shard->end);
    if (from >= to) continue;
    Box box = piece.box;
    box.begin[dim] += from - begin;
    box.size[dim] = to - from;
    Dims stored_begin = piece.stored_begin;
    stored_begin[dim] = from - shard->begin;
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
  std::vector<std::size_t> dims;
  rows.reserve(shards.size());
  for (std::size_t s = 0; s < shards.size(); ++s) {
    const RowDim by_rows = shards[s].empty() ? RowDim() : row_dim(local.stored[s]);
    dims.push_back(by_rows.dim);
    rows.push_back(rows_of(map, local.stored[s], by_rows, shards[s]));
    add_padding(map, local.stored[s], by_rows.dim, rows.back(), role);
  }
  for (std::size_t l = 0; l < local.logical.size(); ++l) {
    const LogicalTensor& logical = local.logical[l];
    std::optional<std::uint32_t> index;  // created with its first piece
    for (const Piece& piece : local.pieces[l])
      cut(piece, dims[piece.stored], rows[piece.stored], [&](std::uint32_t stored, Box box, Dims stored_begin) {
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
