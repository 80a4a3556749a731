// The optimizer's states of a training checkpoint as tensors of the model's parameters: local tensors of tensor- and
// pipeline-parallel ranks, by name, whose rows are distributed over data-parallel ranks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "reshard/io/files.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/layouts/optimizer/optimizer_listing.h"
#include "reshard/layouts/states/training_states.h"

namespace reshard {

struct ShardedCheckpoint;
struct Checkpoint;

/// The optimizer of a sharded checkpoint: its files, and the parameter of each entry. TensorEntry::file of its shards is
/// an index into the map of the model.
struct ShardedOptimizer {
  OptimizerFiles files;
  std::vector<std::vector<std::string>> names;  // see names_of_entries
  std::map<std::string, Dims> uncut;            // see ShardedCheckpoint

  /// The names of the entries in the file of a rank, as in the model's files.
  const std::vector<std::string>& names_of(std::uint32_t pp_rank, std::uint32_t ep_rank) const {
    return names[std::size_t{pp_rank} * files.ep + ep_rank];
  }
};

/// A shard, and the tensor of the model that it belongs to or has rows of.
struct StatePart {
  const StateShard* shard;
  std::uint32_t pp_rank;
  std::uint32_t local;  // index of the stored tensor in the map of the model
  SharedName name;      // in the optimizer's file: "base_state.3.exp_avg"
};

/// Returns the names of the entries (see names_of_entries), as in the files of the model that `shards` and the map of
/// `checkpoint` describe. `options` may select a rule (kSourceOptimizerGroups).
/// \throws Error like names_of_entries.
std::vector<std::vector<std::string>> name_entries(const OptimizerFiles& files, const ShardedCheckpoint& shards,
                                                   const Checkpoint& checkpoint, const OptionValues& options);

/// Reads the headers of the optimizer's files in `folder` and determines the names of their entries. Adds the files to
/// the map of `checkpoint`, which is that of the model in `shards`.
/// \throws Error like read_optimizer_files and names_of_entries; kBadInput if there are no files.
ShardedOptimizer read_sharded_optimizer(Files& files, const std::filesystem::path& folder,
                                        const ShardedCheckpoint& shards, Checkpoint& checkpoint,
                                        const OptionValues& options);

/// Returns the master weights in all files, file by file. Borrows `optimizer`.
/// \throws Error kUnsupported if they are incomplete; kBadInput if a shape differs from that in the model's file.
std::vector<StatePart> master_parts(const ShardedOptimizer& optimizer, const SourceMap& model);

/// Returns the states, named "optimizer.state.<parameter>.<state>". Each state is split like its parameter in `model`,
/// the map of the model.
/// \throws Error kUnsupported if the states are incomplete; kBadInput if files contradict each other.
TrainingStates sharded_states(const ShardedOptimizer& optimizer, const SourceMap& model);

/// Returns the states by id, named "optimizer.state.tp_rank_00_pp_rank_00.3.exp_avg". The names of `optimizer` must be
/// its ids (keeps_ids).
/// \throws Error like sharded_states.
TrainingStates states_by_id(const ShardedOptimizer& optimizer);

/// How the optimizer's master weights become the model's.
struct MasterUse {
  bool as_model = false;     // cast them to the dtypes of the model's own weights; otherwise to float32 at most
  bool only_source = false;  // the model files contain no weights; only parameters with master weights can be recovered
};

/// Replaces the model's weights in `model` with the optimizer's master weights. Tensors without master weights
/// (buffers, frozen parameters) stay unchanged.
/// \returns the number of unchanged tensors.
/// \throws Error kUnsupported if master weights are incomplete; kBadInput if the files contain no master weights, or
/// if `only_source` is set and a tensor has none.
std::size_t take_master_weights(const ShardedOptimizer& optimizer, SourceMap& model, MasterUse use);

}  // namespace reshard
