#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "reshard/layouts/map/tensor_map.h"
#include "reshard/plan/job/check.h"
#include "reshard/tensor/copy/runs.h"

namespace reshard {

/// A box of a tensor in memory. `order` lists its dims from outermost to innermost; empty for C order.
struct Block {
  Block() = default;
  explicit Block(Box a_box, Dims an_order = {}) : box(std::move(a_box)), order(std::move(an_order)) {}

  /// Index in the tensor of the block's element `elem`, counted in memory order.
  Dims index_of(std::uint64_t elem) const;

  Box box;
  Dims order;
};

/// The bytes of one stored tensor that a block reads or writes. In `runs`, a is the stored tensor and b the block.
struct Group {
  std::uint32_t stored = 0;
  std::vector<Runs> runs;
  std::uint64_t begin_bytes = 0;  // range of the stored tensor that contains all runs
  std::uint64_t end_bytes = 0;
  std::uint64_t total_bytes = 0;

  bool dense() const { return end_bytes - begin_bytes == total_bytes; }
  bool is_one_run() const { return runs.size() == 1 && runs.front().loops.empty(); }
};

/// Returns one group for each stored tensor in `pieces` that intersects `block`, a box of `tensor`. `pieces` are
/// grouped by stored tensor.
std::vector<Group> groups_of(const TensorMap& map, std::span<const Piece> pieces, const LogicalTensor& tensor,
                             const Block& block);
std::vector<Group> groups_of(const TensorMap& map, std::span<const Check> checks, const LogicalTensor& tensor,
                             const Block& block);

}  // namespace reshard
