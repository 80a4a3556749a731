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
  std::map<std::pair<std::string, std::string>, const PlainValue*> numbers;
  for (const StateNumber& number : b.numbers) numbers.emplace(std::pair(number.parameter, number.state), &number.value);
  for (const StateNumber& number : a.numbers) {
    const auto found = numbers.find({number.parameter, number.state});
    if (found == numbers.end() || *found->second == number.value) continue;
    lines.push_back(fmt::format("{} of {}: {} and {}", printable(number.state), printable(number.parameter),
                                to_string(number.value), to_string(*found->second)));
  }
  const GroupOf of_b = groups_by_parameter(b);
  std::set<std::string> told;
  for (const OptimizerGroup& group : a.groups)
    for (const std::string& parameter : group.parameters) {
      const auto other = of_b.find(parameter);
      if (other == of_b.end()) continue;
      for (const auto& [key, value] : group.values) {
        const PlainValue* theirs = find_value(other->second->values, key);
        if (theirs == nullptr || *theirs == value) continue;
        const std::string values = fmt::format("{} and {}", to_string(value), to_string(*theirs));
        if (told.insert(key + " " + values).second)
          lines.push_back(fmt::format("{} of {}: {}", printable(key), printable(parameter), values));
      }
    }
  return lines;
}

}  // namespace reshard
