#include "reshard/layouts/states/optimizer_summary.h"

#include <algorithm>
#include <optional>

#include "reshard/layouts/contents/number_reader.h"
#include "reshard/layouts/states/training_states.h"

namespace reshard {
std::optional<double> real_of(const PlainValue& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value.value)) return static_cast<double>(*whole);
  if (const auto* real = std::get_if<double>(&value.value)) return *real;
  return std::nullopt;
}

void StateCounts::add(const std::string& name, DType dtype, std::uint64_t bytes) {
  const auto [found, is_new] = by_name_.emplace(name, states_.size());
  if (is_new) states_.push_back({name, dtype});
  OptimizerSummary::State& state = states_[found->second];
  ++state.tensors;
  state.bytes += bytes;
}

std::vector<OptimizerSummary::Group> groups_of(const TrainingStates& states) {
  std::vector<OptimizerSummary::Group> groups;
  for (const OptimizerGroup& group : states.groups) groups.push_back({group.values, group.parameters.size()});
  return groups;
}

std::optional<double> last_step(Files& files, std::span<const SourceFile> in_files, const TrainingStates& states) {
  std::optional<double> last;
  const auto add = [&](const PlainValue& value) {
    if (const auto step = real_of(value)) last = std::max(last.value_or(*step), *step);
  };
  for (const StateNumber& number : states.numbers)
    if (number.state == kStep) add(number.value);
  NumberReader reader(files, in_files);
  for (std::size_t i = 0; i < states.of.size(); ++i)
    if (states.state(i) == kStep && NumberReader::can_read(states.map.logical[i]) && !states.map.pieces[i].empty())
      add(reader.read(states.map.stored[states.map.pieces[i].front().stored]));
  return last;
}

}  // namespace reshard
