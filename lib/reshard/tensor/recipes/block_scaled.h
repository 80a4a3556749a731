#pragma once

#include <cstdint>
#include <memory>

#include "reshard/tensor/recipes/recipe.h"

namespace reshard {

/// The float32 values of weights (..., out, in) of 8 bits, the first input, times the scales of their blocks (..., out /
/// rows, in / columns), the second: one product in single precision per element. The last blocks may be partial. With
/// `rows` 0 the second input is a single scale for the whole weight, of any shape.
/// Source: DeepSeek-V3, inference/kernel.py, weight_dequant.
std::shared_ptr<const Recipe> block_scaled_recipe(std::uint64_t rows, std::uint64_t columns);

}  // namespace reshard
