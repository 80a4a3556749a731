#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "reshard/tensor/values/box.h"
#include "reshard/tensor/values/view.h"

namespace reshard {

/// Where a box of one tensor lies in an array that holds several, or holds one in another order: experts one behind the
/// other, linears one under the other, rows of which every second one belongs to the same half of a head.
struct Region {
  std::uint32_t tensor = 0;  // which of the tensors
  Box box;                   // of it
  Dims begin;                // of the box's first element in the array; one number a dim of that
  Dims axes;                 // of each dim of the box, the dim of the array along which it runs
  Dims steps;                // of each dim of the box, from one index to the next along that

  friend bool operator==(const Region&, const Region&) = default;
};

/// What lies in `box` of the array. Its begin is counted from that of `box`.
std::optional<Region> part_in(const Region& region, const Box& box);

/// The region as a view of the array, of which `strides` has one for each dim, and the offset of its first element.
struct PlacedView {
  std::uint64_t offset = 0;
  View view;
};
PlacedView view_of(const Region& region, const Dims& strides);

/// How an array holds tensors of the model: one, as it is, unless it says otherwise.
struct Packing {
  bool is_stack = false;  // one behind the other in dim 0
  /// Rows of a head whose rows come in pairs: row 2i + half of it is row half · head_dim / 2 + i of the model's. 0: rows
  /// are in the model's order.
  std::uint64_t head_dim = 0;

  bool is_plain() const { return !is_stack && head_dim == 0; }
  /// What lies in `box` of an array of `shape`; begins are counted from that of `box`.
  std::vector<Region> regions_in(const Dims& shape, const Box& box) const;
};

/// An array of which all regions are boxes: a view of it that has one dim for each of theirs, and where they begin in it.
struct BoxedRegions {
  View view;
  std::vector<Region> regions;  // with begins in the view, axes in order, and steps of 1
};

/// Regions of one array of `shape` in C order, each with the array's last dims, as boxes of one view. Where rows of every
/// second or third place cannot be one, each row becomes a region by itself.
BoxedRegions as_boxes(const Dims& shape, std::vector<Region> regions);

}  // namespace reshard
