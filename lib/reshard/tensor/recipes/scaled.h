#pragma once

#include <memory>

#include "reshard/tensor/recipes/recipe.h"

namespace reshard {

/// A float tensor times a number, like `tensor * factor` in torch: the product is computed in single precision (F64 in
/// double), with the factor rounded to it, and rounded once to the tensor's dtype.
std::shared_ptr<const Recipe> scaled_recipe(double factor);

}  // namespace reshard
