// Writes the files of NxD's ZeRO-1 optimizer next to the model of a training layout.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "reshard/formats/common/format.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/specs/stages/stage_plan.h"

namespace reshard {

/// Destination and distribution of the optimizer's files.
struct OptimizerTarget {
  std::filesystem::path folder;  // relative to the output directory
  Format format = Format::kPytorch;
  std::uint32_t dp = 1;  // number of data-parallel ranks that share the rows of each tensor-parallel rank
  std::uint32_t ep = 1;  // number of expert-parallel ranks, which divides dp
  std::span<const OptimizerGroup> groups;  // parameter groups; borrowed
};

/// Adds the optimizer's files to `plan`, whose map is that of the model's files: one per data-parallel rank of each of
/// the model's ranks (neuronx_distributed/optimizer/zero_redundancy_optimizer.py). They contain the parameters' numbers
/// (by the groups of `target` and the order of the model's file), the shapes and each rank's rows of all states, and
/// master weights. Master weights that `states` does not have are made from the weights. With expert-parallel ranks,
/// experts have groups of their own, data-parallel rank d has those of expert-parallel rank d mod ep, and there are no
/// master weights (NeuronEPZero1Optimizer).
/// \param stages  the stages of `plan`.
/// \throws Error kUnsupported, naming the state or parameter, if parameters that are fused into one are in different
/// groups or have different states, or if a state has neither one element nor its parameter's shape; kBadInput if
/// states have no groups, or if a group has parameters that the model does not have.
void add_optimizer_files(TargetPlan& plan, const TrainingStates& states, const std::vector<StagePlan>& stages,
                         const OptimizerTarget& target);

}  // namespace reshard
