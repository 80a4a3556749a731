#pragma once

#include <cstddef>
#include <set>
#include <span>
#include <string>
#include <string_view>

namespace reshard {

/// Whether a state of this name has the shape of its parameter: "exp_avg".
bool is_moment(std::string_view state);

/// Which entries of a training checkpoint are its optimizers'. An optimizer saves "state" and "param_groups"
/// (torch/distributed/checkpoint/state_dict.py of 2.6), under whatever name the training program gives it:
/// "app.optim.state.FQN.exp_avg". What is found under such a name decides, and not the name alone.
class OptimizerEntries {
 public:
  OptimizerEntries() = default;
  /// \param tensors  names of all entries that are tensors; `objects` those of others. Neither is kept.
  /// O(n log n) in the entries.
  OptimizerEntries(std::span<const std::string> tensors, std::span<const std::string> objects);

  /// Whether an entry is an optimizer's: moments, counters, groups of parameters.
  bool has(std::string_view entry) const;
  /// The part of a state's name that is its parameter's, if the state's own name has no dot; empty if it is no state.
  std::string_view parameter_of(std::string_view entry) const;

 private:
  std::size_t state_begin(std::string_view entry) const;

  std::set<std::string, std::less<>> folders_;  // "app.optim.state."
};

}  // namespace reshard
