// The parameters that one pipeline rank's optimizer steps: the tensors of its model's files, by the numbers under which
// the optimizer saves them.
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

/// A state of a local parameter, composed of the states of its parts.
struct NumberedState {
  std::string name;  // "exp_avg"
  DType dtype = DType::kF32;
  std::optional<PlainValue> number;  // the value, if the state is not a tensor
  bool is_scalar = false;            // has one element and is not split
  std::vector<std::uint32_t> parts;  // indices into TrainingStates::map, in the order of the parts; empty for a number
};

/// A parameter on a rank: one of the model's, or several that are fused.
struct NumberedParameter {
  std::string name;         // name in the optimizer
  std::string stored_name;  // name in the model's files; differs if the parameter is tied to another stage's
  std::uint32_t group = 0;  // experts that are distributed over ranks: the number of groups more
  std::uint32_t id = 0;
  std::vector<NumberedState> states;  // without master weights; unsplit states come first
  DType master_dtype = DType::kF32;
  bool has_master = false;  // whether the states include master weights
};

/// Finds the numbered parameters. Borrows all arguments of the constructor.
class NumberedParameters {
 public:
  /// \param local   the map of the model's files.
  /// \param groups  the optimizer's groups, which `states` need not have.
  NumberedParameters(const TensorMap& local, const TrainingStates& states, std::span<const OptimizerGroup> groups);

  /// Validates that the groups belong to this model.
  /// \throws Error kBadInput, naming the parameter.
  void validate_groups(std::span<const StagePlan> stages) const;

  /// Returns the parameters of a stage, whose tensor-parallel ranks store `stored`, sorted by number: by group, then in
  /// the order of the files.
  /// \throws Error like add_optimizer_files.
  std::vector<NumberedParameter> of_stage(std::span<const std::uint32_t> stored, std::span<const StagePlan> stages,
                                          std::uint32_t pp_rank);

  /// Returns the logical tensor of a state.
  std::optional<std::uint32_t> state_of(const std::string& parameter, const std::string& state) const;
  /// Name and dtype of master weights that are made from the weights. The parameter must belong to a stage that was
  /// passed to of_stage.
  static std::string master_name(const std::string& parameter);
  DType master_dtype(const std::string& parameter) const { return master_dtypes_.at(parameter); }
  /// Whether a parameter of a stage has this state.
  bool is_placed(std::size_t state) const { return placed_[state]; }

 private:
  struct Known {
    std::string name;
    std::uint32_t tensor = 0;
    const PlainValue* number = nullptr;  // if set, there is no tensor
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
  std::vector<Parts> parts_;                                   // by stored tensor
  std::unordered_map<std::string, std::vector<Known>> known_;  // by parameter
  std::unordered_map<std::string, std::uint32_t> groups_;
  std::unordered_map<std::string, DType> master_dtypes_;
  std::vector<bool> placed_;
};

}  // namespace reshard
