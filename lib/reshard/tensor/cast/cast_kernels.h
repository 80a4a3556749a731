// What cast.cpp chooses from.
#pragma once

#include <cstddef>

#include "reshard/tensor/values/dtype.h"

namespace reshard {

/// Casts `count` elements, saturating. Returns the index of the first value that overflowed, or `count`. It is the
/// specification of the casts, one element at a time. can_cast(from, to, Integers::kAllow) must hold, and from != to.
std::size_t cast_scalar(DType from, const std::byte* in, std::size_t count, DType to, std::byte* out);

/// Casts as cast_scalar does, bit for bit, and returns whether any value overflowed.
using CastKernel = bool (*)(const std::byte* in, std::size_t count, std::byte* out);

/// The kernel for the instruction set in use (simd.h); null if there is none for these dtypes.
CastKernel simd_cast_kernel(DType from, DType to);

}  // namespace reshard
