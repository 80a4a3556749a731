// Keys of an optimizer's state_dict(), as torch has them and, for ZeRO-1, torch_xla
// (distributed/zero_redundancy_optimizer.py).
#pragma once

#include <cstddef>

namespace reshard {

inline constexpr const char* kGroupsKey = "param_groups";
inline constexpr const char* kGroupParametersKey = "params";  // of a group
inline constexpr const char* kStateKey = "state";
inline constexpr const char* kBaseStateKey = "base_state";
inline constexpr const char* kShapesKey = "shape_info";
inline constexpr const char* kMastersKey = "sharded_master_weights";

/// No file may claim more groups of parameters; a run has two.
inline constexpr std::size_t kMaxParameterGroups = 10'000;
/// Nor more hyperparameters of one; torch's optimizers have a dozen.
inline constexpr std::size_t kMaxHyperparameters = 1000;

}  // namespace reshard
