#include "reshard/layouts/compare_states.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "reshard/base/strings.h"

namespace reshard {
namespace {

/// The parameter's name and what comes after it; empty for a state of no parameter, and for padding.
std::string key_of(const TrainingStates& states, std::size_t index) {
  const TrainingState& state = states.of[index];
  if (state.parameter_size == 0 || states.map.logical[index].filler) return {};
  return states.map.logical[index].name.substr(state.parameter_begin);
}

using Numbers = std::map<std::pair<std::string, std::string>, const PlainValue*>;

/// By parameter and state.
Numbers numbers_of(const TrainingStates& states) {
  Numbers found;
  for (const StateNumber& number : states.numbers)
    found.emplace(std::pair(number.parameter, number.state), &number.value);
  return found;
}

using GroupOf = std::unordered_map<std::string, const OptimizerGroup*>;

GroupOf groups_by_parameter(const TrainingStates& states) {
  GroupOf found;
  for (const OptimizerGroup& group : states.groups)
    for (const std::string& parameter : group.parameters) found.emplace(parameter, &group);
  return found;
}

const PlainValue* find_value(const PlainValue::Dict& values, const std::string& key) {
  const auto found = std::find_if(values.begin(), values.end(), [&](const auto& item) { return item.first == key; });
  return found == values.end() ? nullptr : &found->second;
}

void compare_numbers(const TrainingStates& a, const TrainingStates& b, std::vector<std::string>& lines) {
  const Numbers of_a = numbers_of(a), of_b = numbers_of(b);
  const auto add = [&](const StateNumber& number, const std::string& in_a, const std::string& in_b) {
    lines.push_back(
        fmt::format("{} of {}: {} and {}", printable(number.state), printable(number.parameter), in_a, in_b));
  };
  for (const StateNumber& number : a.numbers) {
    const auto found = of_b.find({number.parameter, number.state});
    if (found == of_b.end())
      add(number, to_string(number.value), "nothing");
    else if (*found->second != number.value)
      add(number, to_string(number.value), to_string(*found->second));
  }
  for (const StateNumber& number : b.numbers)
    if (!of_a.contains({number.parameter, number.state})) add(number, "nothing", to_string(number.value));
}

/// Compares the hyperparameters of parameters that groups of both have; each pair of values is told once.
class GroupComparison {
 public:
  GroupComparison(const TrainingStates& a, const TrainingStates& b, std::vector<std::string>& lines)
      : a_(a), b_(b), lines_(lines) {}

  void run() {
    const GroupOf of_a = groups_by_parameter(a_), of_b = groups_by_parameter(b_);
    for (const OptimizerGroup& group : a_.groups)
      for (const std::string& parameter : group.parameters)
        if (const auto other = of_b.find(parameter); other == of_b.end())
          lines_.push_back(fmt::format("hyperparameters of {}: only in A", printable(parameter)));
        else
          compare(parameter, group.values, other->second->values);
    for (const OptimizerGroup& group : b_.groups)
      for (const std::string& parameter : group.parameters)
        if (!of_a.contains(parameter))
          lines_.push_back(fmt::format("hyperparameters of {}: only in B", printable(parameter)));
  }

 private:
  void compare(const std::string& parameter, const PlainValue::Dict& in_a, const PlainValue::Dict& in_b) {
    for (const auto& [key, value] : in_a) {
      const PlainValue* const other = find_value(in_b, key);
      if (other == nullptr)
        tell(key, parameter, "only in A");
      else if (*other != value)
        tell(key, parameter, fmt::format("{} and {}", to_string(value), to_string(*other)));
    }
    for (const auto& [key, value] : in_b)
      if (find_value(in_a, key) == nullptr) tell(key, parameter, "only in B");
  }

  void tell(const std::string& key, const std::string& parameter, const std::string& difference) {
    if (told_.emplace(key, difference).second)
      lines_.push_back(fmt::format("{} of {}: {}", printable(key), printable(parameter), difference));
  }

  const TrainingStates& a_;
  const TrainingStates& b_;
  std::vector<std::string>& lines_;
  std::set<std::pair<std::string, std::string>> told_;
};

}  // namespace

void name_states_alike(const TrainingStates& a, TrainingStates& b) {
  std::unordered_map<std::string, std::size_t> of_a;
  for (std::size_t i = 0; i < a.of.size(); ++i)
    if (std::string key = key_of(a, i); !key.empty()) of_a.emplace(std::move(key), i);
  std::vector<std::string> names;
  std::set<std::string> taken;
  for (const LogicalTensor& tensor : b.map.logical) taken.insert(tensor.name);
  for (std::size_t i = 0; i < b.of.size(); ++i) {
    names.push_back(b.map.logical[i].name);
    const std::string key = key_of(b, i);
    const auto found = key.empty() ? of_a.end() : of_a.find(key);
    if (found == of_a.end() || !taken.insert(a.map.logical[found->second].name).second) continue;
    names.back() = a.map.logical[found->second].name;
    b.of[i].parameter_begin = a.of[found->second].parameter_begin;
  }
  b.map.rename_logical(names);
}

std::vector<std::string> different_values(const TrainingStates& a, const TrainingStates& b) {
  std::vector<std::string> lines;
  compare_numbers(a, b, lines);
  if (!a.groups.empty() && !b.groups.empty()) GroupComparison(a, b, lines).run();
  return lines;
}

}  // namespace reshard
