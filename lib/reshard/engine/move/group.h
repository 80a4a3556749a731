#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "reshard/layouts/map/tensor_map.h"
#include "reshard/plan/job/check.h"
#include "reshard/tensor/copy/runs.h"

namespace reshard {

/// A box of a tensor in memory. `order` lists its dims from the outermost to the innermost; empty for C order.
struct Block {
  Block() = default;
  explicit Block(Box a_box, Dims an_order = {}) : box(std::move(a_box)), order(std::move(an_order)) {}

  /// The index in the tensor of the block's element `elem`, counted in the order of memory.
  Dims index_of(std::uint64_t elem) const;

  Box box;
  Dims order;
};

/// The part of one stored tensor that a block needs or feeds. In `runs`, a is the stored tensor and b the block.
struct Group {
  std::uint32_t stored = 0;
  std::vector<Runs> runs;
  std::uint64_t begin_bytes = 0;  // the range of the stored tensor that contains all of them
  std::uint64_t end_bytes = 0;
  std::uint64_t total_bytes = 0;

  bool dense() const { return end_bytes - begin_bytes == total_bytes; }
  bool is_one_run() const { return runs.size() == 1 && runs.front().loops.empty(); }
};

/// The part of each stored tensor in `pieces` that `block`, a box of `tensor`, needs or feeds. Stored tensors that have
/// nothing in common with it are left out. `pieces` are grouped by stored tensor.
std::vector<Group> groups_of(const TensorMap& map, std::span<const Piece> pieces, const LogicalTensor& tensor,
                             const Block& block);
std::vector<Group> groups_of(const TensorMap& map, std::span<const Check> checks, const LogicalTensor& tensor,
                             const Block& block);

}  // namespace reshard
