#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/models.h"
#include "support/oracle.h"
#include "support/random.h"
#include "support/saved_trees.h"
#include "support/training_runs.h"

/// Runs of training that tests make themselves: a model with what its optimizer has of it.
namespace reshard::test {

struct TrainingRun {
  TinyModel model;
  TensorMap weights;
  /// By state ("exp_avg", "master"), then by parameter. Each step is one number of 0 dims, and not all are
  /// the same. One parameter may have none:
  /// it never had a gradient.
  std::map<std::string, TensorMap> states;
  std::vector<nlohmann::ordered_json> groups;  // hyperparameters
  bool has_two_groups = false;                 // norms and biases are in the second
  DType state_dtype = DType::kF32;
};

/// The group of a parameter of the model, or of one as ranks have it. Buffers and integers are in none: -1.
int group_of(const TrainingRun& run, const std::string& parameter);

/// A run with weights of one dtype, and states of another.
TrainingRun random_training(Random& random, const TinyModel& model);
TrainingRun random_training(Random& random, const TinyModel& model, const TensorMap& weights);

/// A run whose optimizer has one group, no master weights, and states of all parameters.
TrainingRun one_group(Random& random, const TinyModel& model);

/// A run of any model, whose optimizer has one group and has stepped all parameters equally often.
TrainingRun one_step(Random& random, const TensorMap& weights);

/// The same run with the second group, of which the first one's hyperparameters are those where it has no such group.
TrainingRun grouped_by_rule(TrainingRun run);

/// Writes it as torch.distributed.checkpoint has it, with the model under "model." and the optimizer under "optim.", in
/// chunks of any ranks. \param flat  the hyperparameters of every parameter by itself.
void write_dcp(const std::filesystem::path& directory, const TrainingRun& run, Random& random, bool flat);

/// The optimizer's files, by path relative to the output of layout nxd, as the reference would save them for the model's
/// files that stand in `model`. Sliced here, from what the oracle says that ranks hold.
std::map<std::string, SavedTree> expected_optimizer(const TrainingRun& run, const OracleOptions& mesh, std::uint64_t dp,
                                                    const std::filesystem::path& model);

/// How NxD saves an optimizer through torch.distributed.checkpoint.
struct NxdDcpForm {
  std::uint64_t dp = 1;
  bool dedup = false;       // what all tensor-parallel ranks have is there once
  bool flat = false;        // as torch 2.4 and later flatten dicts
  bool has_counts = false;  // steps are numbers
};

/// The same files in this form: entries by name, without padding and without master weights. The run has one group.
Saved nxd_dcp(const TrainingRun& run, const OracleOptions& mesh, const NxdDcpForm& form,
              const std::filesystem::path& model);

/// Replaces the optimizer's files in `folder` by what NxD saves through torch.distributed.checkpoint, of as many
/// data-parallel ranks as can all have rows.
void save_through_dcp(Random& random, const std::filesystem::path& folder, const TrainingRun& run,
                      const OracleOptions& mesh);

}  // namespace reshard::test
