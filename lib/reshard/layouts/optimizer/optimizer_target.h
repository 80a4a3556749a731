// The files of NxD's ZeRO-1 optimizer, which a training layout writes beside its model's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "reshard/formats/common/format.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/specs/stages/stage_plan.h"

namespace reshard {

/// Where they go, and how states are spread.
struct OptimizerTarget {
  std::filesystem::path folder;  // relative to the output directory
  Format format = Format::kPytorch;
  std::uint32_t dp = 1;  // data-parallel ranks, each of which has some rows of what a tensor-parallel rank holds
  std::span<const OptimizerGroup> groups;  // of parameters; borrowed
};

/// Adds to `plan`, whose map is that of the model's files, a file of the optimizer for each data-parallel rank of each
/// of the model's ranks (neuronx_distributed/optimizer/zero_redundancy_optimizer.py): the parameters' numbers by the
/// groups of `target` and the order of the model's file, what rows each rank has of each state, and master weights,
/// which are made of the weights where `states` has none.
/// \param stages  those of `plan`.
/// \throws Error kUnsupported, naming the state or parameter: parameters that are fused into one and are in different
///         groups, or have different states; a state that has neither one element nor its parameter's shape.
///         kBadInput for states without groups, and for a group of parameters that the model does not have.
void add_optimizer_files(TargetPlan& plan, const TrainingStates& states, const std::vector<StagePlan>& stages,
                         const OptimizerTarget& target);

}  // namespace reshard
