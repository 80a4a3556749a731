#pragma once

#include <cstdint>
#include <vector>

#include "reshard/tensor/values/box.h"

namespace reshard {

/// The boxes that elements [begin, begin + count) of a C-ordered tensor make, in their order: each is as large as it
/// can be, and its elements lie one after another. At most two a dim, less one. None where `count` is 0, but for a
/// tensor without elements: the box that is all of it.
/// \param shape  of elements that can be counted, of which the range is a part.
std::vector<Box> boxes_of_range(const Dims& shape, std::uint64_t begin, std::uint64_t count);

}  // namespace reshard
