// Row shards: data-parallel ranks share the states of one tensor- and pipeline-parallel rank, and each has some rows of
// the local tensor (torch_xla's zero_redundancy_optimizer.py). Source and target maps use the same functions.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "reshard/layouts/map/tensor_map.h"

namespace reshard {

/// A stored tensor that contains the rows of a local tensor from `begin_row` on. Rows beyond the local tensor are
/// padding of zeros.
struct RowShard {
  std::uint32_t stored = 0;
  std::uint64_t begin_row = 0;
};

/// Returns the rows per shard if `count` ranks, at least one, share `rows`: ⌈rows / count⌉.
std::uint64_t rows_per_shard(std::uint64_t rows, std::uint64_t count);

/// The rows of a local tensor that shard `number` of `count` contains, without padding; none if earlier shards contain
/// all.
struct RowShare {
  std::uint64_t begin_row = 0;
  std::uint64_t rows = 0;
};
RowShare row_share(std::uint64_t rows, std::uint64_t count, std::uint64_t number);

/// Returns the shape of each shard of a local tensor: fewer rows. A scalar, which has no rows, keeps its shape.
Dims row_shard_shape(Dims local, std::uint64_t count);

/// Returns the name, dtype and role of a local map's logical tensor in the map of shards. Its shape stays.
using NameOfState = std::function<LogicalTensor(const LogicalTensor& local)>;

/// Adds the pieces of shards to `map`. `shards[s]`, sorted by rows, are the shards of stored tensor s of `local`. Each
/// shard contains its rows of every box that the local tensor contains; padding stays padding. Every shard of a scalar
/// contains it whole. Shards get the label and the flags (replicated, tied, expert_parallel) of their local tensor, and
/// padding has `role`. If `shards[s]` is empty, tensor s is in no shard.
///
/// Requires stored tensors that are in `map`, C-ordered in both files, with the dims of the local tensor's file except
/// the first, and with the dtype that `state` returns. A shard gets the view of its local tensor, whose rows in the file
/// need not be the view's. Gaps between shards are detected when the map is used.
/// O(n) in the resulting pieces.
/// \throws Error kBadInput like TensorMap::add_logical; kUnsupported for a view that does not go through the rows in
/// order.
void add_row_shards(TensorMap& map, const TensorMap& local, std::span<const std::vector<RowShard>> shards,
                    const NameOfState& state, TensorRole role = TensorRole::kState);

}  // namespace reshard
