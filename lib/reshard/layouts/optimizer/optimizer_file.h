// One file of an optimizer's state_dict() as NeuronX Distributed (NxD) saves it (trainer/checkpoint.py; the ZeRO-1 form is
// torch_xla's distributed/zero_redundancy_optimizer.py, the one with experts NxD's optimizer/ep_zero.py), plain or xser.
// In a file that holds the weights as well it is the value of "optimizer" (NxD's examples/training, tp_dp_bert_*), or the
// one item of "optimizer_states" (Lightning's trainer). Which parameter a number is, and which rows of it lie here, is for
// layouts to say.
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

/// A state that is a tensor, in shards: one in a file; in a stage one per rank, [tp_rank × dp + dp_rank], as far as ranks
/// store one.
struct OptimizerState {
  std::vector<TensorEntry> shards;

  const std::string& name() const { return shards.front().name; }
  DType dtype() const { return shards.front().dtype; }
  /// Returns nullptr if the rank stores none.
  const TensorEntry* of_rank(std::size_t rank) const { return rank < shards.size() ? &shards[rank] : nullptr; }
};

/// The states of one parameter. A parameter without states is one that has not been trained yet.
struct OptimizerEntry {
  std::vector<OptimizerState> tensors;                      // "exp_avg", "step"; names are unique, numbers' too
  std::vector<std::pair<std::string, PlainValue>> numbers;  // "step" of an optimizer that counts in Python
  OptimizerState master;                                    // of sharded_master_weights; no shards if there are none
  std::optional<Dims> shape;                                // of shape_info: before data-parallel ranks shared it
  std::string name;                                         // of the parameter; empty in files, which have numbers

  bool has_master() const { return !master.shards.empty(); }
  bool has_states() const { return !tensors.empty() || !numbers.empty(); }
};

/// Parameters are counted through all groups: group g has the `count` after those of the groups before it.
struct OptimizerFileGroup {
  PlainValue::Dict values;  // in the file's order, without "params"
  std::uint32_t count = 0;
  std::uint32_t first = 0;  // its first entry: the sum of the counts before it
};

/// What the ranks of one pipeline stage have of the optimizer.
/// Invariant: the groups' counts add up to the entries; every tensor's bytes lie inside its file.
struct OptimizerStage {
  enum class Form : std::uint8_t {
    kZero1,  // base_state, shape_info: data-parallel ranks may share it
    kWhole,  // state: every data-parallel rank has all of it
  };

  std::filesystem::path path;  // of the first rank's file
  Form form = Form::kZero1;
  std::vector<OptimizerFileGroup> groups;
  std::vector<OptimizerEntry> entries;
  std::uint32_t first_expert_group = 0;  // this one and those after it are of experts that are spread over ranks;
                                         // as many as there are groups: none is

  /// Whether an entry is of an expert.
  bool is_expert(std::size_t entry) const { return entry >= num_dense(); }
  /// The number of entries that are of no expert: these come first.
  std::size_t num_dense() const {
    return first_expert_group < groups.size() ? groups[first_expert_group].first : entries.size();
  }
};

/// One rank's file.
struct OptimizerFile : OptimizerStage {
  std::vector<ContainerFile> files;  // which TensorEntry::file counts; the first is `path`
  bool is_xser = false;
  bool has_masters = false;
  std::optional<std::uint64_t> dp_rank, tp_rank;  // recorded in the file
  std::vector<std::string> others;                // keys of its dict that nobody here knows
};

/// What an entry is called in errors: its name, or "id 3", "id 0 of the experts".
std::string name_of_entry(const OptimizerStage& stage, std::uint32_t number);

/// Whether `path`, a file of weights, holds an optimizer as well, or what stands in its place.
/// \throws Error as read_torch_file.
bool holds_optimizer(Files& files, const std::filesystem::path& path);

/// Reads it; no byte of a tensor.
/// \throws Error kBadInput, naming the file and the place in its dict, for what is damaged or no such file, more than
///         10 000 groups, or more than 64 states of a parameter; kUnsupported for several optimizers and
///         hyperparameters that are no plain values, tensors among them; as read_torch_file and XserTensors do.
OptimizerFile read_optimizer_file(Files& files, const std::filesystem::path& path);

}  // namespace reshard
