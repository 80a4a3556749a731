#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reshard/tensor/values/shape.h"

namespace reshard {

/// A block of a tensor: `size[d]` elements from `begin[d]` on in every dim. Both vectors have the tensor's ndim; the
/// box of a scalar has none and holds one element.
struct Box {
  Dims begin;
  Dims size;

  friend bool operator==(const Box&, const Box&) = default;
};

/// The box that is all of a tensor.
Box whole(const Dims& shape);

/// The elements of a box that lies in a tensor of checked size.
std::uint64_t volume(const Box& box);

bool contains(const Dims& shape, const Box& box);

/// What two boxes of one tensor share; nothing if that is empty.
std::optional<Box> intersect(const Box& a, const Box& b);

/// Adds `box` without `hole` to `rest`, as boxes that do not overlap (at most two a dim).
void subtract(const Box& box, const Box& hole, std::vector<Box>& rest);

/// "[0:8, 4:6]"
std::string to_string(const Box& box);

}  // namespace reshard
