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

/// A tensor of a model, as it is before anybody splits it.
struct WholeTensor {
  std::string name;
  Dims shape;
};

/// Whether config.json says by itself how its model is split.
bool has_config_plan(const ModelConfig& config);

/// How a model is split of which nobody knows more than its config.json says, in the words of transformers:
///
///   base_model_tp_plan    {"layers.*.mlp.down_proj": "rowwise"}: a word of kPlanWords for a module, or a parameter.
/// Keys
///                         lack the prefix of the base model ("model."); a "*" stands for a number. What no key names,
///                         every rank has all of.
///   _tp_plan              the same with whole names, as for the head: {"lm_head": "colwise_rep"}
///   base_model_pp_plan    {"norm": [["hidden_states"], ["hidden_states"]]}: what each module takes and gives. What
/// takes
///                         something that the layers give lies behind them, all else before.
///
/// It knows no shapes: those are what the files have.
class ConfigPlan {
 public:
  /// `names` are those of all tensors: they show the base model's prefix. Nothing is borrowed.
  /// \throws Error kBadInput, naming config.json and the key, for a plan that is not an object of known words, for a plan
  /// of layers that are not there, and for one of a model without layers that names none of its tensors.
  ConfigPlan(const ModelConfig& config, const std::vector<std::string>& names);

  /// The shape of the whole tensor of which each of `tp` ranks has one of shape `part`.
  /// \throws Error kBadInput if it has more elements than can be counted.
  Dims whole_shape(const std::string& name, const Dims& part, std::uint32_t tp) const;

  /// The model that has these tensors and no others, in any order; of those of one name the first counts.
  /// \throws Error kBadInput, naming config.json and the tensor, for a size that does not fall into the heads, or
  /// halves, that it must have.
  Model model(std::vector<WholeTensor> tensors) const;

  /// The keys of plans that split something, but no tensor that there is; sorted.
  const std::vector<std::string>& idle_keys() const { return idle_keys_; }
  /// The keys of base_model_pp_plan that name no tensor that there is; sorted.
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
  std::map<std::string, bool> behind_layers_;  // of the keys of base_model_pp_plan
  std::vector<std::string> idle_keys_;
  std::vector<std::string> idle_stage_keys_;
};

}  // namespace reshard
