#pragma once

#include <memory>

#include "reshard/tensor/recipes/recipe.h"

namespace reshard {

/// A float tensor times a number, like `tensor * factor` in torch: the product is computed in single precision (F64 in
/// double), with the factor rounded to it, and rounded once to the tensor's dtype.
std::shared_ptr<const Recipe> scaled_recipe(double factor);

/// A float tensor (..., columns), the first input, times the factors (columns) of the same dtype, the second: products
/// like those of scaled_recipe.
std::shared_ptr<const Recipe> column_scaled_recipe();

}  // namespace reshard
