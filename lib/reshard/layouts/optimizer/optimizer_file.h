// One file of an optimizer's state_dict() as NeuronX Distributed (NxD) saves it, plain or xser (trainer/checkpoint.py;
// the ZeRO-1 form is torch_xla's distributed/zero_redundancy_optimizer.py, the form with experts is NxD's
// optimizer/ep_zero.py). If the file also contains the weights, the optimizer is the value of "optimizer" (NxD's
// examples/training, tp_dp_bert_*) or "optimizer_state_dict" (optimum-neuron 0.0.21, distributed/base.py), or the only
// item of "optimizer_states" (Lightning's trainer). Layouts determine which parameter a number refers to and which of
// its rows the file contains.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reshard/formats/common/container.h"
#include "reshard/formats/pickle/plain_value.h"
#include "reshard/io/files.h"

namespace reshard {

/// A state that is a tensor, in shards: a single shard in a file, and in a stage one per rank that stores it, at
/// [tp_rank × dp + dp_rank].
struct OptimizerState {
  std::vector<TensorEntry> shards;

  const std::string& name() const { return shards.front().name; }
  DType dtype() const { return shards.front().dtype; }
  /// Returns nullptr if the rank has no shard.
  const TensorEntry* of_rank(std::size_t rank) const { return rank < shards.size() ? &shards[rank] : nullptr; }
};

/// The states of one parameter. A parameter that has not been trained yet has no states.
struct OptimizerEntry {
  std::vector<OptimizerState> tensors;  // "exp_avg", "step"; names are unique, also across `numbers`
  std::vector<std::pair<std::string, PlainValue>> numbers;  // "step" of an optimizer that counts in Python
  OptimizerState master;                                    // from sharded_master_weights; no shards if absent
  std::optional<Dims> shape;  // from shape_info: the shape before data-parallel ranks shared it
  std::string name;           // the parameter's name; empty in files, which have numbers

  bool has_master() const { return !master.shards.empty(); }
  bool has_states() const { return !tensors.empty() || !numbers.empty(); }
};

/// Parameters are numbered through all groups: group g has the `count` parameters after those of earlier groups.
struct OptimizerFileGroup {
  PlainValue::Dict values;  // in the file's order, without "params"
  std::uint32_t count = 0;
  std::uint32_t first = 0;  // its first entry: the sum of earlier counts
};

/// The optimizer of one pipeline stage.
/// Invariant: the groups' counts add up to the entries; every tensor's bytes are inside its file.
struct OptimizerStage {
  enum class Form : std::uint8_t {
    kZero1,  // base_state, shape_info: data-parallel ranks may share the states
    kWhole,  // state: every data-parallel rank has all states
  };

  std::filesystem::path path;  // file of the first rank
  Form form = Form::kZero1;
  std::vector<OptimizerFileGroup> groups;
  std::vector<OptimizerEntry> entries;
  std::uint32_t first_expert_group = 0;  // this group and later ones belong to experts that are distributed over
                                         // ranks; the number of groups without experts

  /// Whether an entry belongs to an expert.
  bool is_expert(std::size_t entry) const { return entry >= num_dense(); }
  /// The number of entries that do not belong to experts. These come first.
  std::size_t num_dense() const {
    return first_expert_group < groups.size() ? groups[first_expert_group].first : entries.size();
  }
};

/// One rank's file.
struct OptimizerFile : OptimizerStage {
  std::vector<ContainerFile> files;  // indexed by TensorEntry::file; the first is `path`
  bool is_xser = false;
  bool has_masters = false;
  std::optional<std::uint64_t> dp_rank, tp_rank;  // recorded in the file
  std::vector<std::string> others;                // unknown keys of its dict
};

/// Name of an entry in errors: its parameter's name, or "id 3", "id 0 of the experts".
std::string name_of_entry(const OptimizerStage& stage, std::uint32_t number);

/// Whether `path`, a file of weights, also contains the key of an optimizer, even with an invalid value.
/// \throws Error like read_torch_file.
bool holds_optimizer(Files& files, const std::filesystem::path& path);

/// Reads a rank's file without the bytes of its tensors.
/// \throws Error kBadInput, naming the file and the position in its dict, if it is damaged or not such a file, or has
/// more than 10 000 groups or more than 64 states per parameter; kUnsupported for several optimizers and for
/// hyperparameters that are not plain values, such as tensors; like read_torch_file and XserTensors.
OptimizerFile read_optimizer_file(Files& files, const std::filesystem::path& path);

}  // namespace reshard
