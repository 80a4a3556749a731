#pragma once

#include <memory>

#include "reshard/tensor/recipes/recipe.h"

namespace reshard {

/// Recipe::key() of mean_recipe().
inline constexpr std::string_view kMeanKey = "mean";

/// The elementwise mean of tensors of one float dtype of 8 bits or more, rounded once to nearest even: as torch.mean, summed
/// in order, in single precision unless they are F64, then divided. Where all inputs have the same bits, so does the result;
/// elsewhere it is inexact. One
/// tensor, of any dtype, is its own mean.
std::shared_ptr<const Recipe> mean_recipe();

}  // namespace reshard
