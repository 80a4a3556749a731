#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "reshard/tensor/recipes/recipe.h"

namespace reshard {

/// Number of values that share a scale, and the bytes that contain them.
inline constexpr std::uint64_t kMxfp4Values = 32, kMxfp4Bytes = 16;

/// The bfloat16 values (..., in, out) of MXFP4 blocks (..., out, in / 32, 16), the first input, and scales (..., out,
/// in / 32), the second. Two values (E2M1) per byte, low bits first, each times 2^(scale - 127). Both inputs are U8.
/// Source: Transformers, integrations/mxfp4.py, convert_moe_packed_tensors.
std::shared_ptr<const Recipe> mxfp4_recipe();

/// Returns the shape of the values of blocks of `shape`; std::nullopt if these are no such blocks.
std::optional<Dims> mxfp4_values_shape(const Dims& shape);

}  // namespace reshard
