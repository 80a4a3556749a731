#pragma once

#include <cstddef>
#include <set>
#include <span>
#include <string>
#include <string_view>

namespace reshard {

/// Whether a state of this name has the shape of its parameter: "exp_avg".
bool is_moment(std::string_view state);

/// Finds the optimizers' entries of a training checkpoint. An optimizer saves "state" and "param_groups"
/// (torch/distributed/checkpoint/state_dict.py of 2.6) under a name that the training program chooses:
/// "app.optim.state.FQN.exp_avg". The entries under such a name decide whether it is an optimizer's, not the name
/// alone.
class OptimizerEntries {
 public:
  OptimizerEntries() = default;
  /// \param tensors  names of all entries that are tensors; `objects` are the names of all others. Neither is kept.
  /// O(n log n) in the entries.
  OptimizerEntries(std::span<const std::string> tensors, std::span<const std::string> objects);

  /// Whether an entry belongs to an optimizer: moments, counters, parameter groups.
  bool has(std::string_view entry) const;
  /// Returns the parameter's name inside a state's name, if the state's own name has no dot. Empty if the entry is not
  /// a state.
  std::string_view parameter_of(std::string_view entry) const;

 private:
  std::size_t state_begin(std::string_view entry) const;

  std::set<std::string, std::less<>> folders_;  // "app.optim.state."
};

}  // namespace reshard
