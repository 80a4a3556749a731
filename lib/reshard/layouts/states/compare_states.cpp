#include "reshard/layouts/states/compare_states.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "reshard/base/strings.h"
#include "reshard/layouts/contents/number_reader.h"
#include "reshard/layouts/states/optimizer_summary.h"

namespace reshard {
namespace {

/// Returns the parameter's name and the rest of the state's name; empty for padding and for states of no parameter.
std::string key_of(const TrainingStates& states, std::size_t index) {
  const TrainingState& state = states.of[index];
  return state.parameter.empty() ? std::string() : state.parameter + "." + state.state;
}

using Numbers = std::map<std::pair<std::string, std::string>, const PlainValue*>;

/// Returns the numbers by parameter and state.
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

/// Whether the values are equal as numbers, even if their types differ.
bool is_same(const PlainValue& a, const PlainValue& b) {
  if (a.value.index() == b.value.index()) return a == b;
  const auto real_a = real_of(a), real_b = real_of(b);
  return real_a && real_b && *real_a == *real_b;
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
    else if (!is_same(number.value, *found->second))
      add(number, to_string(number.value), to_string(*found->second));
  }
  for (const StateNumber& number : b.numbers)
    if (!of_a.contains({number.parameter, number.state})) add(number, "nothing", to_string(number.value));
}

/// Compares the hyperparameters of parameters that are in groups of both sides. Reports each pair of values once.
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
        else if (compared_.emplace(&group, other->second).second)
          compare(parameter, group.values, other->second->values);
    for (const OptimizerGroup& group : b_.groups)
      for (const std::string& parameter : group.parameters)
        if (!of_a.contains(parameter))
          lines_.push_back(fmt::format("hyperparameters of {}: only in B", printable(parameter)));
  }

 private:
  void compare(const std::string& parameter, const PlainValue::Dict& in_a, const PlainValue::Dict& in_b) {
    for (const auto& [key, a, b] : different_hyperparameters(in_a, in_b))
      tell(std::string(key), parameter,
           b == nullptr   ? "only in A"
           : a == nullptr ? "only in B"
                          : fmt::format("{} and {}", to_string(*a), to_string(*b)));
  }

  void tell(const std::string& key, const std::string& parameter, const std::string& difference) {
    if (told_.emplace(key, difference).second)
      lines_.push_back(fmt::format("{} of {}: {}", printable(key), printable(parameter), difference));
  }

  const TrainingStates& a_;
  const TrainingStates& b_;
  std::vector<std::string>& lines_;
  std::set<std::pair<const OptimizerGroup*, const OptimizerGroup*>> compared_;
  std::set<std::pair<std::string, std::string>> told_;
};

/// Whether `number` is `value` rounded to `dtype`: float32 cannot represent 0.1.
bool is_rounded(const PlainValue& number, DType dtype, const PlainValue& value) {
  const auto* const real = std::get_if<double>(&value.value);
  return real != nullptr && dtype == DType::kF32 && real_of(number) == static_cast<double>(static_cast<float>(*real));
}

/// Removes the states for which `out` is true, with the stored tensors that contain them.
void take_out(TrainingStates& states, const std::vector<bool>& out) {
  SourceMap& map = states.map;
  std::vector<bool> used(map.stored.size(), true);
  for (std::size_t l = 0; l < map.logical.size(); ++l)
    if (out[l])
      for (const Piece& piece : map.pieces[l]) used[piece.stored] = false;
  map.keep_stored(used);
  SourceMap kept;
  kept.stored = std::move(map.stored);
  std::vector<TrainingState> of;
  for (std::size_t l = 0; l < map.logical.size(); ++l) {
    if (out[l] || (map.pieces[l].empty() && map.logical[l].constant())) continue;  // or which padded what was taken out
    kept.pieces[kept.add_logical(map.logical[l], {})] = std::move(map.pieces[l]);
    of.push_back(states.of[l]);
  }
  states.map = std::move(kept);
  states.of = std::move(of);
}

std::vector<bool> masters_of(const TrainingStates& states) {
  std::vector<bool> masters(states.of.size());
  for (std::size_t i = 0; i < masters.size(); ++i) masters[i] = is_master(states, i);
  return masters;
}

}  // namespace

std::vector<ValueDifference> different_hyperparameters(const PlainValue::Dict& a, const PlainValue::Dict& b) {
  std::unordered_map<std::string_view, const PlainValue*> only_b;  // after the keys of `a` are erased
  for (const auto& [key, value] : b) only_b.emplace(key, &value);
  std::vector<ValueDifference> found;
  for (const auto& [key, value] : a) {
    const auto other = only_b.find(key);
    const PlainValue* const in_b = other == only_b.end() ? nullptr : other->second;
    if (in_b == nullptr || *in_b != value) found.push_back({key, &value, in_b});
  }
  for (const auto& [key, value] : a) only_b.erase(key);
  for (const auto& [key, value] : b)
    if (only_b.contains(key)) found.push_back({key, nullptr, &value});
  return found;
}

void leave_group_objects(TrainingStates& a, TrainingStates& b) {
  if (a.groups.empty() || b.groups.empty()) return;
  for (TrainingStates* states : {&a, &b}) {
    std::vector<bool> out(states->of.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      const LogicalTensor& tensor = states->map.logical[i];
      out[i] = tensor.role == TensorRole::kObject && is_of_group(tensor.name);
    }
    take_out(*states, out);
  }
}

void read_number_tensors(Files& files, std::span<const SourceFile> in_files, TrainingStates& states,
                         const TrainingStates& other) {
  const Numbers theirs = numbers_of(other);
  if (theirs.empty()) return;
  NumberReader reader(files, in_files);
  std::vector<bool> out(states.of.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!NumberReader::can_read(states.map.logical[i]) || states.map.pieces[i].empty()) continue;
    const auto found = theirs.find({states.of[i].parameter, std::string(states.state(i))});
    if (found == theirs.end()) continue;
    out[i] = true;
    PlainValue number = *found->second;
    for (const Piece& piece : states.map.pieces[i]) {
      PlainValue one = reader.read(states.map.stored[piece.stored]);
      if (is_same(one, *found->second) || is_rounded(one, states.map.logical[i].dtype, *found->second)) continue;
      number = std::move(one);
      break;
    }
    states.numbers.push_back({found->first.first, found->first.second, std::move(number)});
  }
  take_out(states, out);
}

std::size_t leave_lone_masters(TrainingStates& states, const TrainingStates& other) {
  const std::vector<bool> masters = masters_of(states), theirs = masters_of(other);
  if (other.groups.empty() || std::find(theirs.begin(), theirs.end(), true) != theirs.end()) return 0;
  const auto count = static_cast<std::size_t>(std::count(masters.begin(), masters.end(), true));
  if (count > 0) take_out(states, masters);
  return count;
}

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
    b.of[i].prefix = a.of[found->second].prefix;
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
