// The kernels of cast.cpp.
#pragma once

#include <cstddef>

#include "reshard/tensor/cast/cast.h"
#include "reshard/tensor/values/dtype.h"

namespace reshard {

/// Casts `count` elements, one at a time, saturating. The specification of all casts. Returns the values that
/// overflowed; their count may be 0. Requires can_cast(from, to, Integers::kAllow) and from != to.
Overflowed cast_scalar(DType from, const std::byte* in, std::size_t count, DType to, std::byte* out);

/// Same bits as cast_scalar. Returns whether any value overflowed.
using CastKernel = bool (*)(const std::byte* in, std::size_t count, std::byte* out);

/// Returns the kernel for the current instruction set (simd.h), or null if these dtypes have none.
CastKernel simd_cast_kernel(DType from, DType to);

}  // namespace reshard
