#pragma once

#include <memory>

#include "reshard/tensor/recipes/recipe.h"

namespace reshard {

/// Recipe::key() of mean_recipe().
inline constexpr std::string_view kMeanKey = "mean";

/// The elementwise mean of tensors of one float dtype of at least 8 bits, like torch.mean: summed in order in single
/// precision (F64 in double), divided, and rounded once to nearest even. If all inputs have the same bits, so does the
/// result; otherwise it is inexact. A single tensor, of any dtype, is returned unchanged.
std::shared_ptr<const Recipe> mean_recipe();

}  // namespace reshard
