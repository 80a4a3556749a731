#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reshard/layouts/map/tensor_map.h"
#include "reshard/plan/job/check.h"
#include "reshard/tensor/copy/runs.h"

namespace reshard {

/// The part of one stored tensor that a block needs or feeds. In `runs`, a is the stored tensor and b the block.
struct Group {
  std::uint32_t stored = 0;
  std::vector<Runs> runs;
  std::uint64_t begin_bytes = 0;  // the range of the stored tensor that holds them all
  std::uint64_t end_bytes = 0;
  std::uint64_t total_bytes = 0;

  bool dense() const { return end_bytes - begin_bytes == total_bytes; }
  bool is_one_run() const { return runs.size() == 1 && runs.front().loops.empty(); }
};

/// What each stored tensor that `pieces` speak of has to do with `block`, a box of a logical tensor of `dtype`; those
/// that have nothing to do with it are left out. `pieces` are grouped by stored tensor.
std::vector<Group> groups_of(const TensorMap& map, std::span<const Piece> pieces, const LogicalTensor& tensor,
                             const Box& block);
std::vector<Group> groups_of(const TensorMap& map, std::span<const Check> checks, const LogicalTensor& tensor,
                             const Box& block);

}  // namespace reshard
