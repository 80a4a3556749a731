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

/// What a file has of one parameter. A parameter without states is one that has not been trained yet.
struct OptimizerEntry {
  std::vector<TensorEntry> tensors;                         // "exp_avg", "step"; names are unique, numbers' too
  std::vector<std::pair<std::string, PlainValue>> numbers;  // "step" of an optimizer that counts in Python
  std::optional<TensorEntry> master;                        // of sharded_master_weights
  std::optional<Dims> shape;                                // of shape_info: before data-parallel ranks shared it
  std::string name;                                         // of the parameter; empty in files, which have numbers
};

/// Parameters are counted through all groups: group g has the `count` after those of the groups before it.
struct OptimizerFileGroup {
  PlainValue::Dict values;  // in the file's order, without "params"
  std::uint32_t count = 0;
  std::uint32_t first = 0;  // its first entry: the sum of the counts before it
};

/// Invariant: the groups' counts add up to the entries; every tensor's bytes lie inside its file.
struct OptimizerFile {
  enum class Form : std::uint8_t {
    kZero1,  // base_state, shape_info: data-parallel ranks may share it
    kWhole,  // state: every data-parallel rank has all of it
  };

  std::filesystem::path path;
  /// That TensorEntry::file counts, the first of which is `path`; empty once they are among OptimizerFiles::files.
  std::vector<ContainerFile> files;
  Form form = Form::kZero1;
  bool is_xser = false;
  std::vector<OptimizerFileGroup> groups;
  std::vector<OptimizerEntry> entries;
  std::uint32_t first_expert_group = 0;  // this one and those after it are of experts that are spread over ranks;
                                         // as many as there are groups: none is
  bool has_masters = false;
  std::optional<std::uint64_t> dp_rank, tp_rank;  // that the file says it is of
  std::vector<std::string> others;                // keys of its dict that nobody here knows

  /// Whether an entry is of an expert.
  bool is_expert(std::size_t entry) const { return entry >= num_dense(); }
  /// The number of entries that are of no expert: these come first.
  std::size_t num_dense() const {
    return first_expert_group < groups.size() ? groups[first_expert_group].first : entries.size();
  }
};

/// What an entry is called in errors: its name, or "id 3", "id 0 of the experts".
std::string name_of_entry(const OptimizerFile& file, std::uint32_t number);

/// Whether `path`, a file of weights, holds an optimizer as well, or what stands in its place.
/// \throws Error as read_torch_file.
bool holds_optimizer(Files& files, const std::filesystem::path& path);

/// Reads it; no byte of a tensor.
/// \throws Error kBadInput, naming the file and the place in its dict, for what is damaged or no such file, more than
///         10 000 groups, or more than 64 states of a parameter; kUnsupported for several optimizers and
///         hyperparameters that are no plain values, tensors among them; as read_torch_file and XserTensors do.
OptimizerFile read_optimizer_file(Files& files, const std::filesystem::path& path);

}  // namespace reshard
