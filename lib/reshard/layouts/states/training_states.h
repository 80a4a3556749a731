#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "reshard/formats/dcp/dcp_metadata.h"
#include "reshard/formats/pickle/plain_value.h"
#include "reshard/layouts/map/chunked_map.h"
#include "reshard/layouts/map/tensor_map.h"

namespace reshard {

/// Parameters that share an optimizer's hyperparameters.
struct OptimizerGroup {
  PlainValue::Dict values;              // in the optimizer's order, without "params"
  std::vector<std::string> parameters;  // the model's names, each in one group, in the optimizer's order
};

/// A state of a parameter that is a number instead of a tensor, such as the step of an optimizer that counts in Python.
struct StateNumber {
  std::string parameter;  // the model's name
  std::string state;      // "step"
  PlainValue value;
};

/// The training state in a checkpoint: moments of the optimizer, counters, schedulers, random numbers. A parameter's
/// state has a name such as "optim.state.model.norm.weight.exp_avg".
struct TrainingStates {
  SourceMap map;                  // without files: stored tensors are in the files of Checkpoint::map
  std::vector<TrainingState> of;  // one per logical tensor of `map`
  /// Paths in the saved nested dictionaries; kParameterMark represents the parameter's name.
  std::vector<DcpPath> paths;
  /// Prefix of the model's names in the checkpoint that the names of states do not have; may be empty.
  std::string prefix;
  /// The optimizer's groups and numbers, if they were read as values (Beside::kReadGroups). The objects that they were
  /// read from are still among the logical tensors.
  std::vector<OptimizerGroup> groups;
  bool grouped_by_values = false;  // the source has hyperparameters per parameter instead of groups
  std::vector<StateNumber> numbers;
  /// If set, the parameters are local tensors of ranks, whose names are unknown (optimizer_ids.h).
  std::shared_ptr<const SourceMap> locals{};

  /// Whether parameters have the model's names instead of those of `locals`.
  bool has_names() const { return locals == nullptr; }
  bool empty() const { return of.empty() && groups.empty() && numbers.empty(); }
  /// Returns the name of state `index` of its parameter: "exp_avg". Empty if it belongs to no parameter or is a
  /// hyperparameter.
  std::string_view state(std::size_t index) const;
  /// Returns the path of state `index` if its parameter is renamed to `parameter`.
  DcpPath path_with(std::size_t index, std::string_view parameter) const;
};

/// Prefix of the names of states if the layout chooses them.
inline constexpr std::string_view kStatePrefix = "optimizer.state.";
/// Returns "optimizer.state.PARAMETER.STATE".
std::string optimizer_state_name(std::string_view parameter, std::string_view state);

/// Name of the state with master weights: the fp32 weights that an optimizer steps and that are cast to the model's
/// dtype.
inline constexpr const char* kMasterState = "master";

/// Whether state `index` is master weights.
bool is_master(const TrainingStates& states, std::size_t index);

/// Whether any state is master weights.
bool has_masters(const TrainingStates& states);

/// A character that occurs in no name.
inline constexpr char kParameterMark = '\0';

/// Returns the states of tensors whose chunks are validated and whose role is set. `where` is used in errors.
/// \throws Error kBadInput if two states have the same name.
TrainingStates training_states(std::vector<ChunkedTensor> tensors, std::vector<DcpPath> paths,
                               const std::filesystem::path& where);

/// Whether an object of this name, which belongs to no single parameter, is the list of parameter names of a group with
/// common hyperparameters (torch/distributed/checkpoint/state_dict.py).
bool lists_parameters(std::string_view name);

/// Whether an object of this name is a hyperparameter of a group or of one parameter.
bool is_of_group(std::string_view name);

/// Renames states after their parameters. `new_names` maps parameters to new names, or to an empty name if they are
/// left out. `where` is used in errors. \returns the names of the states that are left out with their parameters.
/// \throws Error kUnsupported if an object lists parameters by name and one of them is renamed or left out, or if the
/// names are ids.
std::vector<std::string> follow_parameters(TrainingStates& states,
                                           const std::unordered_map<std::string_view, std::string_view>& new_names,
                                           const std::filesystem::path& where);

/// Adds the states to the model that they belong to, whose files contain them.
/// \param same  TargetMap::same of the target: the first of each pair becomes a replica of the second.
/// \throws Error kBadInput if a state has the name of a parameter.
void add_states(SourceMap& model, SourceMap states, const std::vector<std::pair<std::string, std::string>>& same = {});

}  // namespace reshard
