#pragma once

#include <string>
#include <vector>

#include "reshard/layouts/training_states.h"

namespace reshard {

/// Gives states of `b` the names that `a` has for the same state of the same parameter: layouts differ in what they put
/// before a parameter's name.
void name_states_alike(const TrainingStates& a, TrainingStates& b);

/// What the optimizers have in other values, or only one of them has: "step of model.norm.weight: 3 and 4", or "3 and
/// nothing". A hyperparameter is told once for each pair of values ("lr of model.norm.weight: 0.1 and 0.2"), or once for
/// the side that alone has it ("eps of model.norm.weight: only in A"); a parameter that groups of one side alone have is
/// told by itself. Nothing of groups where a side has none at all.
std::vector<std::string> different_values(const TrainingStates& a, const TrainingStates& b);

}  // namespace reshard
