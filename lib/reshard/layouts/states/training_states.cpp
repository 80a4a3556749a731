#include "reshard/layouts/states/training_states.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <variant>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/map/chunked_map.h"

namespace reshard {
namespace {

[[noreturn]] void refuse_list(const std::string& list, bool renames, const std::filesystem::path& where) {
  throw Error(ErrorKind::kUnsupported, renames
                                           ? "lists parameters by name, and `rename` or `renumber-layers` changes names"
                                           : "lists parameters by name, and `drop` or `keep` leaves some out")
      .in(where)
      .tensor(list)
      .hint(std::string(renames ? "leave out `rename` and `renumber-layers`" : "leave out `drop` and `keep`") +
            ", or leave out `with-optimizer`; an optimizer saved with flatten_optimizer_state_dict=True has no such "
            "list");
}

}  // namespace

std::string_view TrainingStates::state(std::size_t index) const {
  return map.logical[index].role == TensorRole::kState ? std::string_view(of[index].state) : std::string_view();
}

DcpPath TrainingStates::path_with(std::size_t index, std::string_view parameter) const {
  DcpPath path = paths[of[index].path];
  for (auto& part : path)
    if (auto* const name = std::get_if<std::string>(&part))
      if (const std::size_t mark = name->find(kParameterMark); mark != name->npos) name->replace(mark, 1, parameter);
  return path;
}

bool is_master(const TrainingStates& states, std::size_t index) {
  return !states.groups.empty() && states.state(index) == kMasterState;
}

TrainingStates training_states(std::vector<ChunkedTensor> tensors, std::vector<DcpPath> paths,
                               const std::filesystem::path& where) {
  std::unordered_set<std::string_view> names;
  names.reserve(tensors.size());
  TrainingStates states;
  states.paths = std::move(paths);
  states.of.reserve(tensors.size());
  for (const ChunkedTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second)
      throw Error(ErrorKind::kBadInput,
                  "and another entry of the training run have one name, " + printable(tensor.name))
          .in(where)
          .tensor(tensor.entry);
    states.of.push_back(tensor.state);
  }
  states.map = chunked_map({}, std::move(tensors), where);
  return states;
}

bool has_masters(const TrainingStates& states) {
  for (std::size_t i = 0; i < states.of.size(); ++i)
    if (is_master(states, i)) return true;
  return false;
}

std::string optimizer_state_name(std::string_view parameter, std::string_view state) {
  return fmt::format("{}{}.{}", kStatePrefix, parameter, state);
}

bool is_of_group(std::string_view name) {
  const std::size_t groups = name.find("param_groups.");
  return groups != name.npos && (groups == 0 || name[groups - 1] == '.');
}

bool lists_parameters(std::string_view name) {
  return is_of_group(name) && name.ends_with(".params");
}

std::vector<std::string> follow_parameters(TrainingStates& states,
                                           const std::unordered_map<std::string_view, std::string_view>& new_names,
                                           const std::filesystem::path& where) {
  if (!states.has_names() && !new_names.empty())
    throw Error(ErrorKind::kUnsupported, "cannot rename or leave out parameters: the optimizer has ids without names")
        .in(where)
        .hint("leave out `rename`, `drop` and `keep`");
  const bool renames =
      std::any_of(new_names.begin(), new_names.end(), [](const auto& one) { return !one.second.empty(); });
  std::vector<std::string> names, left_out;
  names.reserve(states.of.size());
  for (std::size_t i = 0; i < states.of.size(); ++i) {
    const std::string& name = states.map.logical[i].name;
    TrainingState& state = states.of[i];
    // Such an object also lists parameters without states, and its contents are read only for groups.
    if (states.groups.empty() && state.parameter.empty() && states.map.logical[i].role == TensorRole::kObject &&
        lists_parameters(name))
      if (!new_names.empty()) refuse_list(name, renames, where);
    const auto found = state.parameter.empty() ? new_names.end() : new_names.find(state.parameter);
    if (found == new_names.end()) {
      names.push_back(name);
    } else if (found->second.empty()) {
      state.left_out = true;
      left_out.push_back(name);
      names.push_back(name);
    } else {
      names.push_back(state.name_with(found->second));
      state.parameter = found->second;
    }
  }
  if (renames) states.map.rename_logical(names);
  const auto new_name = [&](const std::string& parameter) {
    const auto found = new_names.find(parameter);
    return found == new_names.end() ? std::string_view(parameter) : found->second;
  };
  for (OptimizerGroup& group : states.groups) {
    for (std::string& parameter : group.parameters) parameter = new_name(parameter);
    std::erase(group.parameters, std::string());
  }
  for (StateNumber& number : states.numbers) number.parameter = new_name(number.parameter);
  std::erase_if(states.numbers, [](const StateNumber& number) { return number.parameter.empty(); });
  return left_out;
}

void add_states(SourceMap& model, SourceMap states, const std::vector<std::pair<std::string, std::string>>& same) {
  const std::unordered_map<std::string_view, std::string_view> kept(same.begin(), same.end());
  const auto first = static_cast<std::uint32_t>(model.stored.size());
  const std::size_t of_model = model.logical.size();
  model.stored.reserve(model.stored.size() + states.stored.size());
  for (StoredTensor& tensor : states.stored) model.stored.push_back(std::move(tensor));
  model.reserve_logical(model.logical.size() + states.logical.size());
  for (std::size_t l = 0; l < states.logical.size(); ++l) {
    const LogicalTensor& tensor = states.logical[l];
    if (const auto known = model.find_logical(tensor.name); known && *known < of_model)
      throw Error(ErrorKind::kBadInput, "the model and other training state both have an entry with this name")
          .in(model.files.empty() ? std::filesystem::path() : model.files.front().path.parent_path())
          .tensor(tensor.name)
          .hint("leave out `with-optimizer`");
    LogicalTensor added = tensor;
    if (const auto found = kept.find(tensor.name); found != kept.end()) added.name = found->second;
    const std::uint32_t index = model.add_logical(added, {});
    for (Piece& piece : states.pieces[l]) {
      piece.stored += first;
      model.pieces[index].push_back(std::move(piece));
    }
  }
}

}  // namespace reshard
