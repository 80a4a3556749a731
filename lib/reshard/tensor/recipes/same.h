#pragma once

#include <memory>
#include <string_view>

#include "reshard/tensor/recipes/recipe.h"

namespace reshard {

/// Recipe::key() of same_recipe().
inline constexpr std::string_view kSameKey = "same";

/// The tensor that all inputs are, bit by bit. Fails while it is computed if two inputs differ.
std::shared_ptr<const Recipe> same_recipe();

}  // namespace reshard
