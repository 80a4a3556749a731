// What one pipeline rank's optimizer steps: the tensors of its model's files, by the numbers that it saves them under.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "reshard/layouts/map/tensor_map.h"
#include "reshard/layouts/states/training_states.h"
#include "reshard/specs/stages/stage_plan.h"

namespace reshard {

/// A state of a local parameter, which is made of those of its parts.
struct NumberedState {
  std::string name;  // "exp_avg"
  DType dtype = DType::kF32;
  std::optional<PlainValue> number;  // it is no tensor, but this
  bool is_scalar = false;            // one element, not cut
  std::vector<std::uint32_t> parts;  // of TrainingStates::map, in the order of the parts; none for a number
};

/// A parameter as ranks hold it: one of the model's, or several that are fused.
struct NumberedParameter {
  std::string name;         // the optimizer's
  std::string stored_name;  // in the model's files: the same, but for a parameter that is tied to another stage's
  std::uint32_t group = 0;
  std::uint32_t id = 0;
  std::vector<NumberedState> states;  // without master weights; what is not cut comes first
  DType master_dtype = DType::kF32;
  bool has_master = false;  // among the states
};

/// Finds them. All that is given is borrowed.
class NumberedParameters {
 public:
  /// \param local   the model's files.
  /// \param groups  of the optimizer, which `states` need not have themselves.
  NumberedParameters(const TensorMap& local, const TrainingStates& states, std::span<const OptimizerGroup> groups);

  /// The groups are of this model.
  /// \throws Error kBadInput, naming the parameter.
  void validate_groups(std::span<const StagePlan> stages) const;

  /// Those of a stage, whose tensor-parallel ranks store `stored`, in the order of their numbers: by group, then in the
  /// order of the files.
  /// \throws Error as add_optimizer_files.
  std::vector<NumberedParameter> of_stage(std::span<const std::uint32_t> stored, std::span<const StagePlan> stages,
                                          std::uint32_t pp_rank);

  /// The logical tensor of a state.
  std::optional<std::uint32_t> state_of(const std::string& parameter, const std::string& state) const;
  /// How master weights are called that are made of the weights, and their dtype. Of parameters of stages that
  /// were asked for.
  static std::string master_name(const std::string& parameter);
  DType master_dtype(const std::string& parameter) const { return master_dtypes_.at(parameter); }
  /// Whether a parameter of a stage has the state.
  bool is_placed(std::size_t state) const { return placed_[state]; }

 private:
  struct Known {
    std::string name;
    std::uint32_t tensor = 0;
    const PlainValue* number = nullptr;  // then there is no tensor
  };
  using Parts = std::vector<std::uint32_t>;  // logical tensors of local_

  std::optional<std::uint32_t> group_of(const std::string& stored_name, const Parts& parts) const;
  void take_states(NumberedParameter& parameter, const Parts& parts);
  NumberedState first_state(const Known& known, const std::string& parameter, const Dims& shape) const;
  void add_part(NumberedState& state, const std::string& stored_name, const std::string& parameter, const Dims& shape);
  const Known* find(const std::string& parameter, const std::string& state) const;

  const TensorMap& local_;
  const TrainingStates& states_;
  std::span<const OptimizerGroup> of_optimizer_;
  std::vector<Parts> parts_;                                   // of each stored tensor
  std::unordered_map<std::string, std::vector<Known>> known_;  // by parameter
  std::unordered_map<std::string, std::uint32_t> groups_;
  std::unordered_map<std::string, DType> master_dtypes_;
  std::vector<bool> placed_;
};

}  // namespace reshard
