#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/io/files.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/layouts/states/training_states.h"

namespace reshard {

/// Gives states of `b` the names that `a` has for the same state of the same parameter: layouts differ in what they put
/// before a parameter's name.
void name_states_alike(const TrainingStates& a, TrainingStates& b);

/// Takes the objects that groups were read of out of both, where both have groups as values: these are compared, and not
/// the bytes of some pickle.
void leave_group_objects(TrainingStates& a, TrainingStates& b);

/// Makes numbers of the states that are tensors of no dims here and numbers in `other`: torch's optimizers count steps in
/// a tensor, others in Python. Of replicas the first that is another number than `other` has is taken.
/// \param in_files  those that the tensors of `states` lie in.
/// \throws Error kIo.
void read_number_tensors(Files& files, std::span<const SourceFile> in_files, TrainingStates& states,
                         const TrainingStates& other);

/// Takes out the master weights of an optimizer, if `other` is one without any. \returns how many.
std::size_t leave_lone_masters(TrainingStates& states, const TrainingStates& other);

/// A hyperparameter that two groups have with different values, or one of them alone: nullptr for the other.
struct ValueDifference {
  std::string_view key;
  const PlainValue *a, *b;
};
std::vector<ValueDifference> different_hyperparameters(const PlainValue::Dict& a, const PlainValue::Dict& b);

/// What the optimizers have in other values, or only one of them has: "step of model.norm.weight: 3 and 4", or "3 and
/// nothing". A hyperparameter is told once for each pair of values ("lr of model.norm.weight: 0.1 and 0.2"), or once for
/// the side that alone has it ("eps of model.norm.weight: only in A"); a parameter that groups of one side alone have is
/// told by itself. Numbers are compared by value: 3 is 3.0. Nothing of groups where a side has none at all.
std::vector<std::string> different_values(const TrainingStates& a, const TrainingStates& b);

}  // namespace reshard
