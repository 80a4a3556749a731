// Data-parallel ranks that share the states of what one tensor- and pipeline-parallel rank holds: each has some rows of
// the local tensor (torch_xla's zero_redundancy_optimizer.py). One mechanism for maps of sources and of targets.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "reshard/layouts/map/tensor_map.h"

namespace reshard {

/// A stored tensor that holds rows of a local tensor, from row `begin_row` on, as many as it has itself. Its rows beyond
/// the local tensor are padding, zeros.
struct RowShard {
  std::uint32_t stored = 0;
  std::uint64_t begin_row = 0;
};

/// The rows of each shard where `count` ranks, at least one, share `rows`: ⌈rows / count⌉.
std::uint64_t rows_per_shard(std::uint64_t rows, std::uint64_t count);

/// The rows that shard `number` of `count` has of a local tensor, without padding; none where those before it have all.
struct RowShare {
  std::uint64_t begin_row = 0;
  std::uint64_t rows = 0;
};
RowShare row_share(std::uint64_t rows, std::uint64_t count, std::uint64_t number);

/// The shape of each shard of a local tensor: fewer rows, or all of a number, which has none.
Dims row_shard_shape(Dims local, std::uint64_t count);

/// What a local map's logical tensor is called in the map of shards, and which dtype and role it has there. Its shape
/// stays.
using NameOfState = std::function<LogicalTensor(const LogicalTensor& local)>;

/// Adds to `map` the pieces of shards: `shards[s]`, in the order of their rows, hold stored tensor s of `local`.
/// Whatever box of a logical tensor a local tensor holds, its shards hold too, each its rows of it; padding stays
/// padding. A tensor without dims is no shard's: each holds all of it. Shards get the label and the marks (replicated,
/// tied, of experts) of their local tensor, and padding has `role`. Where `shards[s]` is empty, nothing holds s.
///
/// Callers owe: stored tensors that are in `map`, C-ordered in both maps, with the local tensor's dims but for the
/// first, and the dtype that `state` gives. Whether shards leave gaps is validated with the map's use.
/// Time is linear in the pieces that result.
/// \throws Error kBadInput as TensorMap::add_logical does.
void add_row_shards(TensorMap& map, const TensorMap& local, std::span<const std::vector<RowShard>> shards,
                    const NameOfState& state, TensorRole role = TensorRole::kState);

}  // namespace reshard
