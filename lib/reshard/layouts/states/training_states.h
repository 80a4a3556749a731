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

/// Parameters whose hyperparameters an optimizer has in common.
struct OptimizerGroup {
  PlainValue::Dict values;              // in the optimizer's order, without "params"
  std::vector<std::string> parameters;  // the model's names, each in one group, in the optimizer's order
};

/// A state of a parameter that is a number and no tensor, such as the step of an optimizer that counts in Python.
struct StateNumber {
  std::string parameter;  // the model's name
  std::string state;      // "step"
  PlainValue value;
};

/// What the checkpoint of a training run holds beside the model: moments of the optimizer, counters, schedulers, random
/// numbers. A state of a parameter is named after it: "optim.state.model.norm.weight.exp_avg".
struct TrainingStates {
  SourceMap map;                  // without files: what it stores lies in those of Checkpoint::map
  std::vector<TrainingState> of;  // one per logical tensor of `map`
  /// Where they lie in the nested dictionaries that were saved; kParameterMark stands for the parameter's name.
  std::vector<DcpPath> paths;
  std::string prefix;  // which the checkpoint has before the names of its model, and states have not; empty for none
  /// The optimizer's groups and numbers where they were read as values (Beside::kReadGroups). Objects that they were
  /// read of are among the logical tensors all the same.
  std::vector<OptimizerGroup> groups;
  bool grouped_by_values = false;  // the source has no groups, but each parameter's hyperparameters
  std::vector<StateNumber> numbers;
  /// Where the parameters are local tensors of ranks, whose names nobody knows (optimizer_ids.h): these.
  std::shared_ptr<const SourceMap> locals{};

  /// Whether parameters have the model's names; else those of `locals`.
  bool has_names() const { return locals == nullptr; }
  bool empty() const { return of.empty() && groups.empty() && numbers.empty(); }
  /// The name of the parameter that state `index` belongs to; empty for none.
  std::string_view parameter(std::size_t index) const;
  /// What state `index` of its parameter is called: "exp_avg". Empty for what belongs to none, and for its
  /// hyperparameters.
  std::string_view state(std::size_t index) const;
  /// What state `index` is called where its parameter is called `parameter`, and its path there.
  std::string name_with(std::size_t index, std::string_view parameter) const;
  DcpPath path_with(std::size_t index, std::string_view parameter) const;
};

/// What stands before a parameter in the name of its state, where a layout makes that name.
inline constexpr std::string_view kStatePrefix = "optimizer.state.";
/// "optimizer.state.PARAMETER.STATE"
std::string optimizer_state_name(std::string_view parameter, std::string_view state);

/// How the fp32 weights are called that an optimizer steps, and of which the model's are the cast.
inline constexpr const char* kMasterState = "master";

/// Whether state `index` is such weights.
bool is_master(const TrainingStates& states, std::size_t index);

/// Whether any is.
bool has_masters(const TrainingStates& states);

/// No name has it.
inline constexpr char kParameterMark = '\0';

/// States out of tensors whose chunks are validated, and which have a role. `where` is for errors.
/// \throws Error kBadInput for two of one name.
TrainingStates training_states(std::vector<ChunkedTensor> tensors, std::vector<DcpPath> paths,
                               const std::filesystem::path& where);

/// Whether an object of this name, of no one parameter, is a list of parameters' names: those of a group whose
/// hyperparameters the optimizer has together (torch/distributed/checkpoint/state_dict.py).
bool lists_parameters(std::string_view name);

/// Whether an object of this name is a hyperparameter, of a group or of one parameter.
bool is_of_group(std::string_view name);

/// The states follow their parameters: `new_names` has what some are called from now on, and an empty name for those that
/// are left out. `where` is for errors. \returns the names of the states that are left out with them.
/// \throws Error kUnsupported if an object lists the parameters by their names, and one has another or is left out, or
///         the names are ids.
std::vector<std::string> follow_parameters(TrainingStates& states,
                                           const std::unordered_map<std::string_view, std::string_view>& new_names,
                                           const std::filesystem::path& where);

/// Adds the states to the model they belong to, in whose files they lie.
/// \param same  TargetMap::same of the target: the first of each becomes a replica of the second.
/// \throws Error kBadInput if a state has the name of a parameter.
void add_states(SourceMap& model, SourceMap states, const std::vector<std::pair<std::string, std::string>>& same = {});

}  // namespace reshard
