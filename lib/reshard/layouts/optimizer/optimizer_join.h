// The optimizer's states of a training checkpoint as tensors of the model's parameters: local tensors of tensor- and
// pipeline-parallel ranks by their names, each spread over data-parallel ranks by rows.
#pragma once

#include <cstdint>
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

/// The optimizer of a sharded checkpoint: its files, and which parameter each entry is.
struct ShardedOptimizer {
  OptimizerFiles files;
  std::uint32_t first_file = 0;                 // in the map of the model, of OptimizerFiles::files
  std::vector<std::vector<std::string>> names;  // as of names_of_entries

  /// What the model's files call the entries in the file of a rank.
  const std::vector<std::string>& names_of(std::uint32_t pp_rank, std::uint32_t ep_rank) const {
    return names[std::size_t{pp_rank} * files.ep + ep_rank];
  }
};

/// One tensor in one file of the optimizer, and the tensor of the model that it is of, or has some rows of.
struct StatePart {
  const TensorEntry* tensor;
  std::uint32_t rank;       // index into OptimizerFiles::all
  std::uint32_t file;       // its file, in the map of the model
  std::uint32_t local;      // stored tensor of that map
  std::uint64_t begin_row;  // of the shape in the model's file
  SharedName name;          // in the optimizer's file: "base_state.3.exp_avg"
};

/// The names of the entries, as of names_of_entries: those of the files of the model, which `shards` and the map of
/// `checkpoint` describe. `options` may say by which rule (kSourceOptimizerGroups).
/// \throws Error as names_of_entries.
std::vector<std::vector<std::string>> name_entries(const OptimizerFiles& files, const ShardedCheckpoint& shards,
                                                   const Checkpoint& checkpoint, const OptionValues& options);

/// Reads the headers of the optimizer's files in `folder` and finds the names of their entries. `checkpoint` has the map
/// of the model that `shards` hold, which the files join.
/// \throws Error as read_optimizer_files and names_of_entries; kBadInput if there are none.
ShardedOptimizer read_sharded_optimizer(Files& files, const std::filesystem::path& folder,
                                        const ShardedCheckpoint& shards, Checkpoint& checkpoint,
                                        const OptionValues& options);

/// The master weights of all files, file by file. Borrows `optimizer`.
/// \throws Error kUnsupported if they are incomplete; kBadInput for a shape that is not that of the model's file.
std::vector<StatePart> master_parts(const ShardedOptimizer& optimizer, const SourceMap& model);

/// The states, called "optimizer.state.<parameter>.<state>", which follow the map of the model, `model`: a state is split
/// as the parameter is.
/// \throws Error kUnsupported if they are incomplete; kBadInput for what contradicts itself.
TrainingStates sharded_states(const ShardedOptimizer& optimizer, const SourceMap& model);

/// The states by id, called "optimizer.state.tp_rank_00_pp_rank_00.3.exp_avg", where the names of `optimizer` are its ids
/// (keeps_ids).
/// \throws Error as sharded_states.
TrainingStates states_by_id(const ShardedOptimizer& optimizer);

/// How the optimizer's master weights become the model's.
struct MasterUse {
  bool as_model = false;     // they are cast to the dtypes of the model's own weights; else to float32 at most
  bool only_source = false;  // the model's files have no weights: what the optimizer has not, nobody has
};

/// Makes the optimizer's master weights the model's weights in `model`. What the optimizer has none of (buffers, frozen
/// parameters) stays as it is.
/// \returns how many of the weights stay.
/// \throws Error kUnsupported if they are incomplete; kBadInput if there are none, or some are nowhere.
std::size_t take_master_weights(const ShardedOptimizer& optimizer, SourceMap& model, MasterUse use);

}  // namespace reshard
