#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/specs/config/model_config.h"
#include "reshard/specs/model/model.h"
#include "reshard/tensor/values/shape.h"

namespace reshard {

/// A logical tensor of a model.
struct WholeTensor {
  std::string name;
  Dims shape;
};

/// Whether config.json itself describes how the model is split.
bool has_config_plan(const ModelConfig& config);

/// Partitioning of a model whose family is unknown, from config.json alone, in the terms of transformers:
///
///   base_model_tp_plan    {"layers.*.mlp.down_proj": "rowwise"}: a word of kPlanWords for a module or parameter. Keys
///                         lack the prefix of the base model ("model."); "*" represents a number. Tensors without a
///                         key are replicated.
///   _tp_plan              the same with full names, such as the head's: {"lm_head": "colwise_rep"}
///   base_model_pp_plan    {"norm": [["hidden_states"], ["hidden_states"]]}: inputs and outputs of each module. Modules
///                         that take an output of the layers come after them, all others before.
///
/// The plan contains no shapes; they come from the files.
class ConfigPlan {
 public:
  /// `names` are the names of all tensors; they determine the prefix of the base model. Borrows nothing.
  /// \throws Error kBadInput, naming config.json and the key, if a plan is not an object of known words, names layers
  ///         that do not exist, or, in a model without layers, names none of its tensors.
  ConfigPlan(const ModelConfig& config, const std::vector<std::string>& names);

  /// Returns the shape of a logical tensor if each of `tp` ranks has a slice of shape `part`.
  /// \throws Error kBadInput if the number of elements overflows.
  Dims whole_shape(const std::string& name, const Dims& part, std::uint32_t tp) const;

  /// Returns the model with exactly these tensors, in any order; the first tensor of each name is used.
  /// \throws Error kBadInput, naming config.json and the tensor, if a size is not a multiple of the required heads or
  ///         halves.
  Model model(std::vector<WholeTensor> tensors) const;

  /// Keys of plans that split something but match no tensor; sorted.
  const std::vector<std::string>& idle_keys() const { return idle_keys_; }
  /// Keys of base_model_pp_plan that match no tensor; sorted.
  const std::vector<std::string>& idle_stage_keys() const { return idle_stage_keys_; }

 private:
  void read_plan(const char* key);
  void read_stages();
  void find_layers(const std::vector<std::string>& names);
  void find_base(const std::vector<std::string>& names);
  const std::pair<const std::string, TensorParallelPlan>* entry_of(std::string_view name) const;
  const std::pair<const std::string, TensorParallelPlan>* lookup(std::string_view name) const;
  std::optional<std::uint32_t> split_dim(const std::string& name, std::size_t ndim) const;
  std::optional<std::uint64_t> layer_of(std::string_view name) const;
  void place(ModelParameter& parameter) const;
  ModelParameter parameter(WholeTensor tensor) const;
  std::uint64_t heads_of(const ModelParameter& parameter) const;
  std::optional<std::uint64_t> head_dim_of(std::optional<std::uint64_t> query) const;
  void tie(std::vector<ModelParameter>& parameters) const;
  std::optional<std::uint64_t> number(const char* key, std::uint64_t max) const;

  ModelConfig config_;
  std::map<std::string, TensorParallelPlan, std::less<>> plans_;  // by key
  std::string base_prefix_;                                       // "model."
  std::string layers_ = "layers";              // without the base model's prefix; empty: no stack of layers
  std::map<std::string, bool> behind_layers_;  // from base_model_pp_plan
  std::vector<std::string> idle_keys_;
  std::vector<std::string> idle_stage_keys_;
};

}  // namespace reshard
