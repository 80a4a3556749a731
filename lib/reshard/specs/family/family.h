#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/json_fwd.h"
#include "reshard/specs/config/model_config.h"
#include "reshard/specs/family/expression.h"
#include "reshard/specs/family/scheme.h"
#include "reshard/specs/parallel/transformation_specs.h"
#include "reshard/tensor/values/shape.h"

namespace reshard {

/// How a module's parameters are split, in the terms of Hugging Face's base_model_tp_plan. The plan determines the
/// dim of the stored tensor: colwise the last but one, rowwise the last.
enum class TensorParallelPlan : std::uint8_t {
  kColwise,           // a linear, along its outputs: weight (out, in) along out, and the bias
  kRowwise,           // a linear, along its inputs: weight along in; the bias is replicated
  kPackedColwise,     // like colwise, for each of several matrices that are stacked along the outputs
  kPackedRowwise,     // like rowwise, for each of several matrices that are joined along the inputs
  kEmbeddingRowwise,  // an embedding, along the vocabulary: dim 0
  kReplicate,         // every rank has the whole tensor
};

constexpr bool is_packed(TensorParallelPlan plan) {
  return plan == TensorParallelPlan::kPackedColwise || plan == TensorParallelPlan::kPackedRowwise;
}

/// Whether the outputs of a linear are split, and therefore its bias.
constexpr bool splits_outputs(TensorParallelPlan plan) {
  return plan == TensorParallelPlan::kColwise || plan == TensorParallelPlan::kPackedColwise ||
         plan == TensorParallelPlan::kEmbeddingRowwise;
}

/// Returns the dim that `plan` splits of a weight with `ndim` >= 1 dims; std::nullopt if it is replicated.
std::optional<std::uint32_t> split_dim_of(TensorParallelPlan plan, std::size_t ndim);

/// A name of a plan.
struct PlanWord {
  const char* word;
  TensorParallelPlan plan;
};
/// The first word of each plan is the one that is printed. Other words differ only in how results are combined, which
/// does not affect checkpoints.
inline constexpr PlanWord kPlanWords[] = {
    {"colwise", TensorParallelPlan::kColwise},
    {"rowwise", TensorParallelPlan::kRowwise},
    {"packed_colwise", TensorParallelPlan::kPackedColwise},
    {"packed_rowwise", TensorParallelPlan::kPackedRowwise},
    {"embedding_rowwise", TensorParallelPlan::kEmbeddingRowwise},
    {"replicate", TensorParallelPlan::kReplicate},
    {"colwise_rep", TensorParallelPlan::kColwise},
    {"colwise_gather_output", TensorParallelPlan::kColwise},
    {"local_colwise", TensorParallelPlan::kColwise},
    {"rowwise_rep", TensorParallelPlan::kRowwise},
    {"rowwise_split_input", TensorParallelPlan::kRowwise},
    {"local_rowwise", TensorParallelPlan::kRowwise},
    {"local_packed_rowwise", TensorParallelPlan::kPackedRowwise},
    {"embedding_colwise", TensorParallelPlan::kRowwise},
    {"sequence_parallel", TensorParallelPlan::kReplicate},
    {"replicated_with_grad_allreduce", TensorParallelPlan::kReplicate},
    {"mla_kv_a_proj", TensorParallelPlan::kReplicate},
    {"all_reduce", TensorParallelPlan::kReplicate},
    {"ep_router", TensorParallelPlan::kReplicate},
    {"grouped_gemm", TensorParallelPlan::kReplicate},  // whole experts are distributed over the `ep` ranks
    {"moe_tp_experts", TensorParallelPlan::kReplicate},
    {"gather", TensorParallelPlan::kReplicate},
    {"local", TensorParallelPlan::kReplicate},
};

/// Returns the plan of a word in kPlanWords, or std::nullopt.
std::optional<TensorParallelPlan> plan_of_word(std::string_view word);
/// Returns all words in kPlanWords.
std::vector<std::string> plan_words();

/// What is known of a tensor's shape.
enum class ShapeKnown : std::uint8_t {
  kExactly,
  kOneElement,  // with any number of dims
  kNot,         // it is not checked, and every rank has all of it
};

/// The pipeline stage of a module outside the layers.
enum class OuterStage : std::uint8_t {
  kFirst,
  kLast,
  kAssumedFirst,  // after the layers, but not known to be on the last one
};

/// A model architecture as data. lib/reshard/specs/families/*.json are compiled in; others are read from files.
/// lib/reshard/specs/family.schema.json is the schema of such a file. In a name, the first "*" is the layer number
/// and the second the expert number. A list outside the layers has one "*", for the item number.
struct Family {
  /// One matrix, or several equal ones, in a packed parameter.
  struct Packed {
    Expression size;          // size of each along the split dim
    Expression count;         // number of matrices; absent: one
    bool replicated = false;  // every rank has the whole matrix
  };
  struct Module {
    std::string name;       // "model.layers.*.self_attn.q_proj"
    std::string parameter;  // last component: "weight", or a buffer or bias; "" if `name` includes it
    TensorParallelPlan plan = TensorParallelPlan::kReplicate;
    std::vector<Expression> shape;     // shape of the parameter; empty: a scalar
    bool any_shape = false;            // ShapeKnown::kNot; only for optional replicated modules
    std::optional<std::uint32_t> dim;  // the split dim, if it differs from that of the plan
    Expression bias;                   // whether the module has a bias
    Expression when;                   // whether a layer has this module
    std::vector<Packed> packed;        // for packed plans; empty: two halves
    Expression stride;                 // partition_stride of a plan that is not packed; absent: 1
    Expression heads;                  // number of parts along the split dim that are not divided
    Expression experts;                // number of experts, for the second "*" in the name or stacked in dim 0
    bool stacked = false;              // experts are stacked in dim 0
    Expression first_expert;           // number of the first expert in names; absent: 0
    Expression items;                  // number of items in a list other than experts, for the last "*" in the name
    std::string variant;               // variant of a layer that has this module; empty: all
    bool optional = false;             // checkpoints may lack it
    bool trained = true;               // false: a buffer; optimizers have no state for it
    OuterStage stage = OuterStage::kFirst;  // for modules outside the layers
    std::string tied_to;                    // module whose weight this module shares if it is tied (are_tied)
    std::uint64_t line = 0;                 // line in Family::file; 0: unknown

    /// Whether the name has a star for the number of each of `items` or `experts`, after the star of the layer.
    bool is_list() const { return items || (experts && !stacked); }
    /// Whether every layer has this module. A list outside the layers has only the star of its items.
    bool is_layered() const;
  };
  struct Attention {
    std::string module;  // "model.layers.*.self_attn"
    std::string query, key, value, output;
    std::string fused;                                // name of the fused projection
    bool fuse_qkv = false;                            // one weight for all three, unless a request overrides it
    std::optional<std::uint64_t> kv_size_multiplier;  // unless a request overrides it; absent: the smallest
  };
  struct Fused {
    std::string module;
    std::string name;
    std::vector<std::string> linears;
    std::uint32_t axis = 0;  // fuse_axis: 1 if the linears are split along their inputs
  };

  std::string model_type;
  /// Only set for larger (multimodal) models, which have no other members: the model_type of the language model if
  /// config.json's text_config lacks one.
  std::string language_model;
  std::string layers;                    // prefix of a layer's name: "model.layers"; empty: no stack of layers
  Expression num_layers;                 // number of layers; absent if `layers` is empty
  std::shared_ptr<const Json> defaults;  // an object; values for keys that config.json lacks or sets to null
  /// Same as `defaults` for keys that only a nested part of config.json, such as text_config, may lack: Transformers
  /// omits values there that equal the defaults of the configuration class. Null: none.
  std::shared_ptr<const Json> class_defaults;
  std::map<std::string, Expression, std::less<>> definitions;  // names for repeated expressions
  std::vector<Module> modules;                                 // in state-dict order
  std::optional<Attention> attention;
  std::vector<Fused> fused;
  /// Modules outside the layers ("mtp") that checkpoints may have, with any tensors. Every rank of the last stage has
  /// all of them.
  std::vector<std::string> whole;
  /// Parts of names, between dots, of the parameters that the model computes with in float32, whatever its dtype: they
  /// stay as they are stored when the others are cast to a smaller dtype.
  std::vector<std::string> float32;
  /// Likewise, but only if the others are cast to float16, whose range is too small for them.
  std::vector<std::string> float32_in_float16;
  /// How NxD Inference stores the family.
  struct Inference {
    std::vector<SchemeEntry> entries;  // those that differ from its built-in scheme's
    /// Keys of config.json whose sizes it pads, and the setting with each padded size.
    std::map<std::string, std::string> padded_sizes;
    /// Prefix of the names in the larger model whose language model it loads; empty: it loads none.
    std::string prefix;
  };
  std::optional<Inference> inference;  // std::nullopt if NxD Inference does not know the family
  /// Other programs' names for the parameters in checkpoints of logical tensors; only entries whose parameters the
  /// family has.
  std::vector<std::shared_ptr<const Scheme>> schemes;
  std::string json_text;          // the JSON that this family was parsed from
  std::filesystem::path file;     // file of a user's description, for errors; empty for built-in families
  std::uint64_t layers_line = 0;  // line of num_layers in `file`; 0: unknown
};

/// Returns the names of a family's parameters, with stars for numbers.
std::set<std::string, std::less<>> parameter_names(const Family& family);

/// Whether `spec` describes all modules, so that only the keys that it names are required in config.json.
bool describes_model(const std::shared_ptr<const Family>& spec);

/// Returns the built-in family of this name, or null. Always returns the same object, which lives as long as the
/// program.
std::shared_ptr<const Family> builtin_family(std::string_view model_type);

/// Returns the built-in schemes for checkpoints of logical tensors, restricted to `family`.
std::vector<std::shared_ptr<const Scheme>> builtin_schemes_for(const Family& family);

/// Returns a built-in scheme restricted to `family`; null if it does not support the family. `settings` are those of
/// the program (SchemeEntry::when).
std::shared_ptr<const Scheme> builtin_scheme(std::string_view program, const Family& family,
                                             const Expression::Lookup& settings = {});

/// Returns the built-in scheme of NxD Inference.
const Scheme& inference_scheme();
/// Returns NxD Inference's entries for a family that has Family::inference, with these settings.
Scheme inference_scheme(const Family& family, const Expression::Lookup& settings);

/// Returns the model_types of the built-in families, sorted.
std::vector<std::string> known_model_types();

/// Whether a built-in family is only a second name of another one.
bool is_second_name(std::string_view model_type);

/// Whether `name` has one of `parts` between dots.
bool has_part(std::string_view name, const std::vector<std::string>& parts);
/// Returns the parts of names that any built-in family keeps in float32 (Family::float32).
const std::vector<std::string>& float32_parts();

/// Number of built-in families that are derived from each family.
std::map<std::string, std::size_t> families_like();

/// Replaces the "*" of `pattern` by the number of the layer.
std::string expand_layer(std::string_view pattern, std::uint64_t layer);

}  // namespace reshard
