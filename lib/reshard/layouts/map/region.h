#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "reshard/tensor/values/box.h"
#include "reshard/tensor/values/view.h"

namespace reshard {

/// A box of one tensor and its position in an array that contains several tensors, or one tensor in another order:
/// experts stacked along a new dim, concatenated linears, heads whose rows alternate between their two halves.
struct Region {
  std::uint32_t tensor = 0;  // index of the tensor
  Box box;                   // box of the tensor
  Dims begin;                // index in the array of the box's first element
  Dims axes;                 // for each dim of the box, the dim of the array along which it runs
  Dims steps;                // for each dim of the box, the distance along that dim from one index to the next

  friend bool operator==(const Region&, const Region&) = default;
};

/// The part of `region` inside `box`, relative to `box`; std::nullopt if they do not overlap.
std::optional<Region> part_in(const Region& region, const Box& box);

/// A region as a view of the array, and the offset of its first element.
struct PlacedView {
  std::uint64_t offset = 0;  // in elements
  View view;
};
/// \param strides  strides of the array, in elements.
PlacedView view_of(const Region& region, const Dims& strides);

/// How an array contains tensors of the model. By default it is one of them.
struct Packing {
  /// `size` indices along dim `dim` of the array, `step` apart.
  struct Axis {
    std::uint64_t size = 0;
    std::size_t dim = 0;
    std::uint64_t step = 1;

    friend bool operator==(const Axis&, const Axis&) = default;
  };
  struct Part {
    std::vector<std::vector<Axis>> dims;  // the axes that make up each dim of a tensor; the last runs fastest
    Dims begin;                           // index in the array of a tensor's first element

    friend bool operator==(const Part&, const Part&) = default;
  };

  std::vector<Axis> numbers;  // there is one tensor of every part for each index along these axes
  std::vector<Part> parts;    // empty: the array is one tensor

  friend bool operator==(const Packing&, const Packing&) = default;

  bool is_plain() const { return parts.empty(); }
  /// Whether the array contains the elements of one tensor in their order.
  bool is_identity() const;
  /// Whether as_boxes accepts its regions: the dims of every tensor are the last dims of the array, in order, and only
  /// rows of matrices are permuted.
  bool has_boxes() const;
  /// Upper bound for the number of regions in `box`. Neither this nor regions_in applies to a plain array.
  std::uint64_t count_in(const Box& box) const;
  /// The regions in `box`, relative to it. Tensors are numbered by `numbers`, then by part.
  std::vector<Region> regions_in(const Box& box) const;
};

/// A view of an array in which regions are boxes.
struct BoxedRegions {
  View view;                    // with as many dims as the regions' tensors
  std::vector<Region> regions;  // begins are in the view; axes are 0, 1, …, and steps are 1
};

/// Finds such a view for regions that fill a C-ordered array of `shape`. The regions must belong to a packing that has
/// boxes; there may be none. If their rows alternate and the number of rows is not a multiple of the step, each row
/// becomes a region.
BoxedRegions as_boxes(const Dims& shape, std::vector<Region> regions);

}  // namespace reshard
