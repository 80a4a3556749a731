#pragma once

#include <string>
#include <vector>

#include "reshard/layouts/training_states.h"

namespace reshard {

/// Gives states of `b` the names that `a` has for the same state of the same parameter: layouts differ in what they put
/// before a parameter's name.
void name_states_alike(const TrainingStates& a, TrainingStates& b);

/// What the optimizers have in other values, of hyperparameters and numbers that both have: "step of model.norm.weight: 3
/// and 4". A hyperparameter is told once for each pair of values.
std::vector<std::string> different_values(const TrainingStates& a, const TrainingStates& b);

}  // namespace reshard
