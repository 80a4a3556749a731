#include "reshard/layouts/states/numbered_parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"

namespace reshard {
namespace {

constexpr const char* kNoGroups = "leave out `with-optimizer`: the model is complete without it";

/// Returns the parameters that a stage has because they are tied to another stage's.
std::vector<TiedParameter> tied_to_other_stage(std::span<const StagePlan> stages, std::uint32_t pp_rank) {
  std::vector<TiedParameter> found;
  for (const TiedParameter& tied : stages[pp_rank].tied)
    for (std::uint32_t other = 0; other < pp_rank; ++other) {
      const auto& parameters = stages[other].metadata.parameters;
      if (std::any_of(parameters.begin(), parameters.end(),
                      [&](const ParallelParameter& parameter) { return parameter.name == tied.source; })) {
        found.push_back(tied);
        break;
      }
    }
  return found;
}

}  // namespace

NumberedParameters::NumberedParameters(const TensorMap& local, const TrainingStates& states,
                                       std::span<const OptimizerGroup> groups)
    : local_(local), states_(states), of_optimizer_(groups), parts_(local.stored.size()), placed_(states.of.size()) {
  for (std::uint32_t l = 0; l < local.logical.size(); ++l) {
    if (local.logical[l].constant()) continue;
    for (const Piece& piece : local.pieces[l])
      if (Parts& parts = parts_[piece.stored]; parts.empty() || parts.back() != l) parts.push_back(l);
  }
  for (const StateNumber& number : states.numbers) known_[number.parameter].push_back({number.state, 0, &number.value});
  for (std::uint32_t i = 0; i < states.of.size(); ++i)
    if (!states.of[i].left_out && !states.state(i).empty())
      known_[states.of[i].parameter].push_back({std::string(states.state(i)), i});
  for (std::uint32_t g = 0; g < groups.size(); ++g)
    for (const std::string& parameter : groups[g].parameters) groups_.emplace(parameter, g);
}

void NumberedParameters::validate_groups(std::span<const StagePlan> stages) const {
  if (known_.empty()) throw Error(ErrorKind::kBadInput, "contains no optimizer states to write").hint(kNoGroups);
  if (of_optimizer_.empty())
    throw Error(ErrorKind::kBadInput, "the optimizer's states have no parameter groups").hint(kNoGroups);
  std::unordered_set<std::string> tied;
  for (const StagePlan& stage : stages)
    for (const TiedParameter& parameter : stage.tied) tied.insert(parameter.name);
  for (std::size_t g = 0; g < of_optimizer_.size(); ++g)
    for (const std::string& parameter : of_optimizer_[g].parameters)
      if (!local_.find_logical(parameter) && tied.count(parameter) == 0)
        throw Error(ErrorKind::kBadInput,
                    fmt::format("group {} of the optimizer has this parameter, but the model does "
                                "not",
                                g))
            .tensor(parameter)
            .hint("the model and the optimizer belong to two runs");
}

const NumberedParameters::Known* NumberedParameters::find(const std::string& parameter,
                                                          const std::string& state) const {
  const auto found = known_.find(parameter);
  if (found == known_.end()) return nullptr;
  const auto one =
      std::find_if(found->second.begin(), found->second.end(), [&](const Known& known) { return known.name == state; });
  return one == found->second.end() ? nullptr : &*one;
}

std::optional<std::uint32_t> NumberedParameters::state_of(const std::string& parameter,
                                                          const std::string& state) const {
  const Known* known = find(parameter, state);
  if (known == nullptr || known->number != nullptr) return std::nullopt;
  return known->tensor;
}

std::string NumberedParameters::master_name(const std::string& parameter) {
  return optimizer_state_name(parameter, kMasterState);
}

std::optional<std::uint32_t> NumberedParameters::group_of(const std::string& stored_name, const Parts& parts) const {
  std::optional<std::uint32_t> group;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const std::string& name = local_.logical[parts[p]].name;
    const auto found = groups_.find(name);
    const auto own = found == groups_.end() ? std::nullopt : std::optional(found->second);
    if (!own && known_.count(name) > 0)
      throw Error(ErrorKind::kBadInput, "the optimizer has states of it, but it is in none of the optimizer's groups")
          .tensor(name)
          .hint(kNoGroups);
    if (p == 0) group = own;
    if (own == group) continue;
    const auto says = [](const auto& one) { return one ? fmt::format("group {}", *one) : std::string("no group"); };
    throw Error(ErrorKind::kUnsupported,
                fmt::format("is in {} of the optimizer, and {} in {}: they are fused into {}, which is in one",
                            says(own), printable(local_.logical[parts[0]].name), says(group), printable(stored_name)))
        .tensor(name)
        .hint("choose a layout that does not fuse linears, or leave out `with-optimizer`");
  }
  return group;
}

NumberedState NumberedParameters::first_state(const Known& known, const std::string& parameter,
                                              const Dims& shape) const {
  NumberedState state{known.name};
  if (known.number != nullptr) {
    state.number = *known.number;
    return state;
  }
  const LogicalTensor& tensor = states_.map.logical[known.tensor];
  state.dtype = tensor.dtype;
  state.is_scalar = tensor.shape != shape;
  if (state.is_scalar && num_elems(tensor.shape) != 1u)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("has the shape {}, but its parameter {} has {}: its partition over ranks is unknown",
                            to_string(tensor.shape), printable(parameter), to_string(shape)))
        .tensor(tensor.name)
        .hint("leave out `with-optimizer`");
  return state;
}

void NumberedParameters::add_part(NumberedState& state, const std::string& stored_name, const std::string& parameter,
                                  const Dims& shape) {
  const Known* known = find(parameter, state.name);
  const bool is_number = state.number.has_value();
  if (known != nullptr && is_number == (known->number != nullptr)) {
    if (is_number && *known->number == *state.number) return;
    if (!is_number) {
      const NumberedState own = first_state(*known, parameter, shape);
      const bool same_form = own.dtype == state.dtype && own.is_scalar == state.is_scalar;
      if (same_form) {
        state.parts.push_back(known->tensor);
        placed_[known->tensor] = true;
        return;
      }
    }
  }
  throw Error(ErrorKind::kUnsupported,
              fmt::format("its state {} differs from that of the other parameters that are fused into {}",
                          printable(state.name), printable(stored_name)))
      .tensor(parameter)
      .hint("choose a layout that does not fuse linears, or leave out `with-optimizer`");
}

void NumberedParameters::take_states(NumberedParameter& parameter, const Parts& parts) {
  const LogicalTensor& first = local_.logical[parts.front()];
  std::optional<DType> master, cut;
  for (const std::uint32_t l : parts) {
    const LogicalTensor& part = local_.logical[l];
    const auto known = known_.find(part.name);
    if (known == known_.end()) continue;
    for (const Known& one : known->second) {
      if (one.name != kMasterState) {
        if (find(first.name, one.name) == nullptr) {
          NumberedState state{one.name};
          add_part(state, parameter.stored_name, first.name, first.shape);  // throws the error for the missing state
        }
        continue;
      }
      const LogicalTensor& tensor = states_.map.logical[one.tensor];
      if (one.number != nullptr || tensor.shape != part.shape || tensor.dtype != master.value_or(tensor.dtype))
        throw Error(ErrorKind::kUnsupported,
                    "is not a copy of its parameter, or has another dtype than those it is fused with")
            .tensor(one.number != nullptr ? part.name : tensor.name)
            .hint("choose a layout that does not fuse linears, or leave out `with-optimizer`");
      master = tensor.dtype;
      placed_[one.tensor] = true;
    }
  }
  if (const auto known = known_.find(first.name); known != known_.end())
    for (const Known& one : known->second) {
      if (one.name == kMasterState) continue;
      NumberedState state = first_state(one, first.name, first.shape);
      for (const std::uint32_t l : parts)
        add_part(state, parameter.stored_name, local_.logical[l].name, local_.logical[l].shape);
      const bool is_cut = !state.number && !state.is_scalar;
      if (is_cut && !cut && describe(state.dtype).kind == DTypeClass::kFloat) cut = state.dtype;
      parameter.states.push_back(std::move(state));
    }
  std::stable_partition(parameter.states.begin(), parameter.states.end(),
                        [](const NumberedState& state) { return state.number || state.is_scalar; });
  parameter.has_master = master.has_value();
  parameter.master_dtype = master.value_or(cut.value_or(DType::kF32));
  for (const std::uint32_t l : parts) master_dtypes_.insert_or_assign(local_.logical[l].name, parameter.master_dtype);
}

std::vector<NumberedParameter> NumberedParameters::of_stage(std::span<const std::uint32_t> stored,
                                                            std::span<const StagePlan> stages, std::uint32_t pp_rank) {
  std::unordered_map<std::string_view, std::size_t> position;
  std::unordered_set<std::string_view> experts;
  std::vector<std::pair<std::string, Parts>> all;  // over all tensor-parallel ranks, as one may have only padding
  for (const std::uint32_t s : stored) {
    if (local_.stored[s].tied) continue;
    const std::string& name = local_.stored[s].name.text();
    const auto [found, is_new] = position.emplace(name, all.size());
    if (is_new) all.emplace_back(name, Parts{});
    if (local_.stored[s].expert_parallel) experts.insert(name);
    Parts& parts = all[found->second].second;
    parts.insert(parts.end(), parts_[s].begin(), parts_[s].end());
  }
  // A parameter that is tied to another stage's has this stage's name and comes last, like the model's head.
  std::unordered_map<std::string, std::string> second_names;
  for (const TiedParameter& tied : tied_to_other_stage(stages, pp_rank)) second_names.emplace(tied.source, tied.name);
  std::stable_partition(all.begin(), all.end(), [&](const auto& one) { return second_names.count(one.first) == 0; });
  std::vector<NumberedParameter> parameters;
  for (auto& [name, parts] : all) {
    std::sort(parts.begin(), parts.end());
    parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
    const auto group = parts.empty() ? std::nullopt : group_of(name, parts);
    if (!group) continue;  // a buffer, or a parameter that is not trained
    const auto second = second_names.find(name);
    NumberedParameter& parameter = parameters.emplace_back();
    parameter.name = second == second_names.end() ? name : second->second;
    parameter.stored_name = name;
    parameter.group = *group + (experts.count(name) > 0 ? static_cast<std::uint32_t>(of_optimizer_.size()) : 0);
    take_states(parameter, parts);
  }
  std::stable_sort(parameters.begin(), parameters.end(),
                   [](const NumberedParameter& a, const NumberedParameter& b) { return a.group < b.group; });
  for (std::uint32_t id = 0; id < parameters.size(); ++id) parameters[id].id = id;
  return parameters;
}

}  // namespace reshard
