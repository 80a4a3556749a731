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

/// A tensor or an object of a checkpoint that is not part of the model. Points into the metadata.
struct DcpState {
  const DcpTensor* tensor = nullptr;     // null for an object
  std::vector<const DcpBytes*> objects;  // one per rank that saved it; must be equal
  std::string name;                      // with its parameter's name in the model (NamedEntry::name)
  TrainingState state;

  const std::string& entry() const { return tensor != nullptr ? tensor->name : objects.front()->name; }
};

/// Finds the training state in a checkpoint, and the parameters that it belongs to. Optimizers name states after the
/// parameters, without the prefix of the model's state dict (torch/distributed/checkpoint/state_dict.py, 2.2 to 2.6:
/// "state.FQN.exp_avg" and "param_groups.FQN.lr").
class DcpStateFinder {
 public:
  /// Borrows `model` and `names`.
  /// \param model  The tensors that `names` applies to.
  /// \param names  The result of find_state_names.
  DcpStateFinder(std::span<const DcpTensor> model, const StateNames& names, std::filesystem::path where);

  /// Returns the entries of `metadata` except the tensors that have a name in `named`. Takes O(n log n) time.
  /// \param named  The tensors of `metadata`; empty if no tensor is the model's.
  /// \throws Error kBadInput if a moment has another shape than its parameter; kUnsupported for a state that cannot be
  ///         reordered with its parameter.
  std::vector<DcpState> find(const DcpMetadata& metadata, std::span<const NamedEntry> named);

  /// Returns TrainingStates::paths for all states found so far.
  std::vector<DcpPath> take_paths();
  /// Returns the states found so far whose parameters are packed.
  PackedEntries take_packed() { return std::move(packed_); }
  /// Returns the optimizer states of parameters that the model does not have.
  const std::vector<std::string>& strangers() const { return strangers_; }

 private:
  struct Parameter {
    std::uint32_t tensor = 0;        // index into model_
    std::string inner;               // prefix of the parameter's name that belongs to the model's modules
    std::size_t begin = 0, end = 0;  // range of `inner` and the name in the entry
    std::string before, after;       // the rest of the state's name, before and after this range
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
  std::unordered_map<std::string, std::uint32_t> by_name_;  // indices into model_, by the optimizer's names
  std::vector<std::string> inner_prefixes_;                 // suffixes of the model's prefix; modules may use them
  std::map<DcpPath, std::uint32_t> numbers_;                // index of each path
  PackedEntries packed_;
  std::vector<std::string> strangers_;
  bool renames_ = false;        // some state has another name of its parameter than the model
  bool has_own_names_ = false;  // some state already has the model's name of a renamed parameter
  std::string list_;            // an entry that lists parameters by name
};

}  // namespace reshard
