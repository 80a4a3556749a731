#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reshard/tensor/values/shape.h"

namespace reshard {

/// A block of a tensor: `size[d]` elements from `begin[d]` in every dim. Both vectors have the ndim of the tensor. The
/// box of a scalar has no dims and contains one element.
struct Box {
  Dims begin;
  Dims size;

  friend bool operator==(const Box&, const Box&) = default;
};

/// Returns the box that covers a whole tensor.
Box whole(const Dims& shape);

/// Number of elements of a box. The box must be inside a tensor of checked size.
std::uint64_t volume(const Box& box);

bool contains(const Dims& shape, const Box& box);

/// Intersection of two boxes of a tensor; std::nullopt if empty.
std::optional<Box> intersect(const Box& a, const Box& b);

/// Appends `box` without `hole` to `rest`, as boxes that do not overlap (at most two per dim).
void subtract(const Box& box, const Box& hole, std::vector<Box>& rest);

/// "[0:8, 4:6]"
std::string to_string(const Box& box);

}  // namespace reshard
