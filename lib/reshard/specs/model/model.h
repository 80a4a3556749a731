#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/note.h"
#include "reshard/specs/config/model_config.h"
#include "reshard/specs/family/family.h"
#include "reshard/specs/parallel/transformation_specs.h"
#include "reshard/tensor/values/shape.h"

namespace reshard {

/// A parameter of a model: a module of a family with all numbers filled in.
struct ModelParameter {
  std::string name;    // as in the Hugging Face checkpoint
  std::string module;  // name without its last component
  Dims shape;
  TensorParallelPlan plan = TensorParallelPlan::kReplicate;
  ShapeKnown shape_known = ShapeKnown::kExactly;
  bool plain = false;  // a weight without scales in a quantised model; if it has 8 bits or fewer, scales are missing
  bool partial_block = false;  // scales whose last block is partial, so that they can only be padded
  bool is_bias = false;
  bool optional = false;
  bool trained = true;                     // false: a buffer; optimizers have no state for it
  OuterStage stage = OuterStage::kFirst;   // if it is outside the layers
  std::optional<std::uint32_t> split_dim;  // std::nullopt: replicated
  std::vector<PackedPart> packed;          // along split_dim; empty: one matrix
  std::uint64_t heads = 0;                 // parts along split_dim that are not divided; 0: may be split anywhere
  std::uint64_t linear_size = 0;           // if quantised: the linear's size along the split dim; otherwise 0
  std::uint64_t block = 1;                 // number of elements of the linear per element along split_dim
  std::optional<std::uint64_t> layer;
  std::optional<std::uint64_t> expert;  // expert that owns the parameter
  std::uint64_t experts = 0;  // number of experts in the layer, if it belongs to an expert or stacks them all in dim 0
  /// Parameter whose values this one shares; empty if none. If a checkpoint contains both, their bytes decide.
  std::string tied_to;
};

/// Whether the weight of a linear is stored as (inputs, outputs), like that of a Conv1D.
bool is_transposed(const ModelParameter& weight);

/// Limits for untrusted configs.
inline constexpr std::uint64_t kMaxLayers = 1 << 14;
inline constexpr std::uint64_t kMaxParameters = 1 << 21;  // including matrices packed in them

/// Why the tensors of a quantised model cannot be interpreted, as a sentence, and how to fix it.
struct QuantizationProblem {
  std::string what;
  std::string hint;
  ErrorKind kind = ErrorKind::kUnsupported;  // or kBadInput if config.json is invalid
};

/// Origin of a model's family.
enum class FamilyFrom : std::uint8_t {
  kConfig,  // model_type in config.json
  kOption,  // the user selected another built-in family
  kSpec,    // the user provided a description
};

/// A family with the numbers of config.json: every parameter of the checkpoint, in state-dict order.
struct Model {
  std::shared_ptr<const Family> family;
  std::uint64_t layers = 0;    // 0 if the family has no stack of layers
  std::uint64_t heads = 0;     // query heads; 0 if the family has no attention
  std::uint64_t kv_heads = 0;  // key/value heads
  std::uint64_t head_dim = 0;
  bool plain_heads = true;   // each query projection has exactly one row per element of each head
  bool quantized = false;    // linears have scales, and are not fused
  std::string quant_method;  // from config.json's quantization_config; empty if absent
  std::optional<QuantizationProblem> quantization_problem;  // set if the method is unknown
  std::map<std::uint64_t, std::uint64_t> pad_units;         // Quantization::pad_units
  std::string quantization_marker;                          // suffix of the tensor that marks a quantised linear
  std::string stacked_suffix;                               // suffix of the scales of stacked experts
  Notes notes;                                              // notes to print
  Notes file_notes;                   // notes on files that contradict config.json: tied weights, absent layers
  std::optional<bool> tied_by_files;  // set if the files contradict config.json: whether they are tied
  bool renamed = false;               // its names have another prefix than the family's, or it has another head
  bool is_part = false;               // part of a larger model, whose other tensors are among the parameters
  FamilyFrom family_from = FamilyFrom::kConfig;
  bool by_config_plan = false;          // from a ConfigPlan: its tensors are those of the files
  std::set<std::string> assumed_whole;  // from a ConfigPlan: parameters that the plan does not name
  std::shared_ptr<const Json> config;   // source of the numbers; null for a ConfigPlan
  /// Finds built-in families that match every tensor, if this one does not. Reads all headers again. Null if none
  /// should be proposed.
  std::function<std::vector<std::string>()> find_other_families;
  std::vector<ModelParameter> parameters;
};

/// Returns the name of a module: `pattern` with the layer number for its star. Returns std::nullopt if only one of
/// `pattern` and `layer` refers to a layer.
std::optional<std::string> module_in(std::string_view pattern, const std::optional<std::uint64_t>& layer);

/// The keys on which the shape of `parameter` depends and which config.json lacks, or has as null, with the family's
/// defaults: "num_local_experts", "8"; "num_key_value_heads", "num_attention_heads".
std::vector<std::pair<std::string, std::string>> defaults_in_shape(const Model& model, const ModelParameter& parameter);

/// Whether a condition over config.json, with the defaults and definitions of the model's family, holds for a layer.
/// \throws Error kBadInput, naming the key, if a value is missing or invalid.
bool holds_in(const Model& model, const Expression& condition, const std::optional<std::uint64_t>& layer);
/// Returns the value of a whole number over the content of a config.json, likewise. `config` is null without one.
/// \throws like holds_in.
std::uint64_t number_in(const Family& family, std::shared_ptr<const Json> config, const Expression& number);

/// Whether a checkpoint contains a tensor with this name.
using HoldsName = std::function<bool(const std::string& name)>;

/// Instantiates `family` with the numbers of `config`. `holds` determines which linears of a quantised model are
/// quantised; without it, none are. `most` is the maximum number of parameters, `usual` the expected number.
/// \throws Error kBadInput, naming config.json and the key, if a number is missing or invalid.
Model instantiate(std::shared_ptr<const Family> family, const ModelConfig& config, const HoldsName& holds = {},
                  std::uint64_t most = kMaxParameters, std::size_t usual = 0);

}  // namespace reshard
