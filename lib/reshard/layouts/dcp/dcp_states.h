#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "reshard/formats/dcp/dcp_metadata.h"
#include "reshard/layouts/core/unpack.h"
#include "reshard/layouts/names/state_names.h"
#include "reshard/layouts/states/training_states.h"

namespace reshard {

/// An entry of a checkpoint that is not the model's: a tensor or an object, the other is null. Points into the metadata.
struct DcpState {
  const DcpTensor* tensor = nullptr;
  std::vector<const DcpBytes*> objects;  // those of several ranks, which must be the same
  std::string name;                      // with the model's name of its parameter, as in StateNames::names
  TrainingState state;

  const std::string& entry() const { return tensor != nullptr ? tensor->name : objects.front()->name; }
};

/// Finds what a training run has saved beside the model, and which parameters it belongs to: optimizers call states
/// after the model's own names, without the prefix that the model's state dict is under
/// (torch/distributed/checkpoint/state_dict.py, 2.2 to 2.6: "state.FQN.exp_avg" and "param_groups.FQN.lr").
class DcpStateFinder {
 public:
  /// \param model  the tensors that `names` are about. All are borrowed; `names` as find_state_names made it.
  DcpStateFinder(std::span<const DcpTensor> model, const StateNames& names, std::filesystem::path where);

  /// The entries of `metadata` but for the tensors that have a name in `names`, which is empty where none is the model's.
  /// \throws Error kBadInput if a moment has another shape than its parameter; kUnsupported for a state that cannot
  ///         follow its parameter into the model's order.
  /// O(n log n) in the entries.
  std::vector<DcpState> find(const DcpMetadata& metadata, std::span<const std::string> names);

  /// Of all found so far: TrainingStates::paths.
  std::vector<DcpPath> take_paths();
  /// Of all found so far: those whose parameters are packed.
  PackedEntries take_packed() { return std::move(packed_); }
  /// Optimizer states of parameters that the model does not have.
  const std::vector<std::string>& strangers() const { return strangers_; }

 private:
  struct Parameter {
    std::uint32_t tensor = 0;        // of the model
    std::string inner;               // what stands before the model's name, and its modules have themselves
    std::size_t begin = 0, end = 0;  // of both in an entry
    std::string before, after;       // the beginning and the end of the state's name, around them
  };

  std::optional<Parameter> parameter_called(std::string_view name) const;
  std::optional<Parameter> parameter_in(std::string_view entry) const;
  std::optional<Parameter> parameter_behind_state(std::string_view entry) const;
  void name_state(DcpState& state, const DcpPath* path);
  void take_packing(const DcpState& state, std::uint32_t parameter);
  bool is_renamed(std::uint32_t parameter) const;
  bool changes_list() const;
  std::uint32_t path_number(DcpPath path);
  [[noreturn]] void refuse_list(const std::string& entry) const;

  std::span<const DcpTensor> model_;
  const StateNames& names_;
  std::filesystem::path where_;
  std::unordered_map<std::string, std::uint32_t> by_name_;  // tensors of the model, as the optimizer calls them
  std::vector<std::string> inner_prefixes_;                 // ends of the model's prefix, which its modules may have
  std::map<DcpPath, std::uint32_t> numbers_;                // of paths
  PackedEntries packed_;
  std::vector<std::string> strangers_;
  bool renames_ = false;        // the optimizer calls a parameter by another name than the model will
  bool has_own_names_ = false;  // it calls one by the model's, whose entry has another
  std::string list_;            // an entry that lists parameters by their names
};

}  // namespace reshard
