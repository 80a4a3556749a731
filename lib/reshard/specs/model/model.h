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
#include "reshard/specs/config/model_config.h"
#include "reshard/specs/family/family.h"
#include "reshard/specs/parallel/transformation_specs.h"
#include "reshard/tensor/values/shape.h"

namespace reshard {

/// One parameter of one model: a family's module with its numbers filled in.
struct ModelParameter {
  std::string name;    // as in the Hugging Face checkpoint
  std::string module;  // the name without the last part
  Dims shape;
  TensorParallelPlan plan = TensorParallelPlan::kReplicate;
  bool any_shape = false;      // its shape is not checked; whole
  bool scalar = false;         // one element, in however many dims
  bool plain = false;          // of a quantised model, without scales; in 8 bits or fewer, these are missing
  bool partial_block = false;  // of scales: the last block is not full, so that it can only be padded
  bool is_bias = false;
  bool optional = false;
  bool on_last_stage = false;
  bool stage_assumed = false;              // outside the layers; nothing says its stage, so it is on the first
  std::optional<std::uint32_t> split_dim;  // nothing: every rank has all of it
  std::vector<PackedPart> packed;          // along split_dim; empty: it is one matrix
  std::uint64_t heads = 0;                 // parts that stay whole along split_dim; 0: it may be split anywhere
  std::uint64_t linear_size = 0;           // of a quantised linear's: the linear's size along what is split; else 0
  std::uint64_t block = 1;                 // how many of those make one element along split_dim
  std::optional<std::uint64_t> layer;
  std::optional<std::uint64_t> expert;  // the expert that owns it
  std::uint64_t experts = 0;            // of its layer, if it is an expert's, or all of theirs stacked in dim 0
  /// The parameter whose values this one shares; empty if it has its own. If a checkpoint has both, their bytes decide.
  std::string tied_to;
};

/// Whether a linear's weight is stored as (inputs, outputs), as a Conv1D's is.
bool is_transposed(const ModelParameter& weight);

/// A hostile config must not make the list of parameters endless.
inline constexpr std::uint64_t kMaxLayers = 1 << 14;
inline constexpr std::uint64_t kMaxParameters = 1 << 21;  // and matrices packed in them

/// Why the tensors of a quantised model cannot be explained, a sentence, and what to do about it.
struct QuantizationProblem {
  std::string what;
  std::string hint;
  ErrorKind kind = ErrorKind::kUnsupported;  // or kBadInput, where config.json makes no sense
};

/// Who says which family a model is of.
enum class FamilyFrom : std::uint8_t {
  kConfig,  // config.json's model_type
  kOption,  // the user, who names a built-in one that is another than that
  kSpec,    // the user, by a description
};

/// A family with config.json's numbers: every parameter the checkpoint has, in state-dict order.
struct Model {
  std::shared_ptr<const Family> family;
  std::uint64_t layers = 0;    // 0 if the family has no stack of layers
  std::uint64_t heads = 0;     // query heads; 0 where the family has no attention
  std::uint64_t kv_heads = 0;  // key/value heads
  std::uint64_t head_dim = 0;
  bool plain_heads = true;   // each query projection has a row for each element of each head, and no more
  bool quantized = false;    // linears have scales, and are not fused with others
  std::string quant_method;  // of config.json's quantization_config; empty where there is none
  std::optional<QuantizationProblem> quantization_problem;  // where that is not known
  std::map<std::uint64_t, std::uint64_t> pad_units;         // Quantization::pad_units
  std::string quantization_marker;                          // what a quantised linear has beside its weight
  std::string stacked_suffix;                               // what stacked experts have behind its name
  std::vector<std::string> notes;                           // to print
  std::vector<std::string> tie_notes;  // on weights that the files show to be tied or not, against config.json
  std::optional<bool> tied_by_files;   // whether they are, where config.json says otherwise
  bool renamed = false;                // its names have another prefix than the family's, or it has another head
  bool is_part = false;                // of a larger one, whose other tensors are among the parameters
  FamilyFrom family_from = FamilyFrom::kConfig;
  bool by_config_plan = false;          // of a ConfigPlan: it has the tensors that the files have
  std::set<std::string> assumed_whole;  // of a ConfigPlan: parameters that it does not name
  std::shared_ptr<const Json> config;   // whose numbers they are; null for a ConfigPlan's
  /// Finds built-in families that explain every tensor, for where this one does not: reads all headers again. Null where
  /// none is to be proposed.
  std::function<std::vector<std::string>()> find_other_families;
  std::vector<ModelParameter> parameters;
};

/// A module's name, `pattern`, with the number of a layer for its star. Nothing if only one of the two is in a layer.
std::optional<std::string> module_in(std::string_view pattern, const std::optional<std::uint64_t>& layer);

/// The keys on which the shape of `parameter` depends and which config.json lacks, or has as null, with the family's
/// defaults: "num_local_experts", "8"; "num_key_value_heads", "num_attention_heads".
std::vector<std::pair<std::string, std::string>> defaults_in_shape(const Model& model, const ModelParameter& parameter);

/// Whether a checkpoint has a tensor of this name.
using HoldsName = std::function<bool(const std::string& name)>;

/// `holds` says which linears of a quantised model are; without it, none. There may be `most` parameters, and there are
/// about `usual` ones.
/// \throws Error kBadInput, naming config.json and the key, where a number is missing or makes no sense.
Model instantiate(std::shared_ptr<const Family> family, const ModelConfig& config, const HoldsName& holds = {},
                  std::uint64_t most = kMaxParameters, std::size_t usual = 0);

}  // namespace reshard
