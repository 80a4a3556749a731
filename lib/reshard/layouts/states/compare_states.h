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

/// Renames states of `b` to the names that `a` has for the same state of the same parameter. Layouts put different
/// prefixes before a parameter's name.
void name_states_alike(const TrainingStates& a, TrainingStates& b);

/// If both sides have groups as values, removes the objects that the groups were read from, so that values are compared
/// instead of the bytes of a pickle.
void leave_group_objects(TrainingStates& a, TrainingStates& b);

/// Converts the states that are scalar tensors here and numbers in `other` to numbers: torch's optimizers count steps
/// in a tensor, others in Python. If replicas differ, takes the first one that differs from `other`.
/// \param in_files  the files that contain the tensors of `states`.
/// \throws Error kIo.
void read_number_tensors(Files& files, std::span<const SourceFile> in_files, TrainingStates& states,
                         const TrainingStates& other);

/// Removes an optimizer's master weights if `other` is an optimizer without any. \returns the number of removed
/// tensors.
std::size_t leave_lone_masters(TrainingStates& states, const TrainingStates& other);

/// A hyperparameter that differs between two groups. The pointer is nullptr if a group does not have it.
struct ValueDifference {
  std::string_view key;
  const PlainValue *a, *b;
};
std::vector<ValueDifference> different_hyperparameters(const PlainValue::Dict& a, const PlainValue::Dict& b);

/// Describes the values that differ between the optimizers, or that only one of them has: "step of model.norm.weight: 3
/// and 4", or "3 and nothing". Reports a hyperparameter once per pair of values ("lr of model.norm.weight: 0.1 and
/// 0.2"), or once if only one side has it ("eps of model.norm.weight: only in A"). Reports each parameter that is in
/// groups of only one side. Compares numbers by value: 3 equals 3.0. Skips groups if a side has no groups at all.
std::vector<std::string> different_values(const TrainingStates& a, const TrainingStates& b);

}  // namespace reshard
