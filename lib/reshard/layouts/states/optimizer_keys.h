// Keys of an optimizer's state_dict() in torch and, for ZeRO-1, in torch_xla
// (distributed/zero_redundancy_optimizer.py).
#pragma once

#include <cstddef>

namespace reshard {

inline constexpr const char* kGroupsKey = "param_groups";
inline constexpr const char* kGroupParametersKey = "params";  // in a group
inline constexpr const char* kStateKey = "state";
inline constexpr const char* kBaseStateKey = "base_state";
inline constexpr const char* kShapesKey = "shape_info";
inline constexpr const char* kMastersKey = "sharded_master_weights";
// Offsets of experts in NxD's optimizer/zero_redundancy_optimizer.py: of their groups, and of their ids in each dict.
inline constexpr const char* kIdOffset = "ep_param_id_offset";  // in "state"
inline constexpr const char* kGroupOffset = "ep_param_group_offset";
inline constexpr const char* kStateOffset = "ep_base_state_offset";
inline constexpr const char* kShapeOffset = "ep_shape_info_offset";

/// Limit for the parameter groups in a file; a run has two.
inline constexpr std::size_t kMaxParameterGroups = 10'000;
/// Limit for the hyperparameters of a group; torch's optimizers have a dozen.
inline constexpr std::size_t kMaxHyperparameters = 1000;

}  // namespace reshard
