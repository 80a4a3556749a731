#pragma once

#include <cstdint>
#include <vector>

#include "reshard/tensor/values/box.h"

namespace reshard {

/// Decomposes elements [begin, begin + count) of a C-ordered tensor into boxes, in order. Each box is as large as
/// possible, and its elements are contiguous. Returns at most 2 * dims - 1 boxes; none if `count` is 0. For a tensor
/// without elements, returns the whole tensor as one box.
/// \param shape  must contain the range, and its number of elements must not overflow.
std::vector<Box> boxes_of_range(const Dims& shape, std::uint64_t begin, std::uint64_t count);

}  // namespace reshard
