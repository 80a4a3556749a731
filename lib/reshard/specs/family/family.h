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

/// How a module's parameters are split, in the words of Hugging Face's base_model_tp_plan. The words say which dim of
/// the tensor as it is stored: colwise the last but one, rowwise the last.
enum class TensorParallelPlan : std::uint8_t {
  kColwise,           // a linear, along its outputs: weight (out, in) along out, bias as well
  kRowwise,           // a linear, along its inputs: weight along in, bias whole
  kPackedColwise,     // as colwise, each of several matrices that stand one under the other on its own
  kPackedRowwise,     // as rowwise, each of several matrices side by side on its own
  kEmbeddingRowwise,  // an embedding, along the vocabulary: dim 0
  kReplicate,         // every rank has all of it
};

constexpr bool is_packed(TensorParallelPlan plan) {
  return plan == TensorParallelPlan::kPackedColwise || plan == TensorParallelPlan::kPackedRowwise;
}

/// Whether a linear's outputs are split, and so its bias as well.
constexpr bool splits_outputs(TensorParallelPlan plan) {
  return plan == TensorParallelPlan::kColwise || plan == TensorParallelPlan::kPackedColwise ||
         plan == TensorParallelPlan::kEmbeddingRowwise;
}

/// The dim of a weight of `ndim` dims (1 at least) that its plan splits; nothing where every rank has all of it.
std::optional<std::uint32_t> split_dim_of(TensorParallelPlan plan, std::size_t ndim);

/// A word that plans are written in.
struct PlanWord {
  const char* word;
  TensorParallelPlan plan;
};
/// The first word for a plan is the one that is printed. The others say what is done with the results, which is
/// nothing to a checkpoint.
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
    {"grouped_gemm", TensorParallelPlan::kReplicate},  // experts that are spread whole, over the `ep` ranks
    {"moe_tp_experts", TensorParallelPlan::kReplicate},
    {"gather", TensorParallelPlan::kReplicate},
    {"local", TensorParallelPlan::kReplicate},
};

/// The plan that a word of kPlanWords means, or nothing.
std::optional<TensorParallelPlan> plan_of_word(std::string_view word);
/// All those words.
std::vector<std::string> plan_words();

/// A model architecture, as data: lib/reshard/specs/families/*.json are compiled in, others come from files. The form
/// of such a file is lib/reshard/specs/family.schema.json. In a name the first "*" stands for the layer's number, the
/// second for an expert's. A list outside the layers has one "*", the item's number.
struct Family {
  /// One of the matrices of a packed one, or several alike.
  struct Packed {
    Expression size;          // of each, along the dim that is split
    Expression count;         // how many; nothing: one
    bool replicated = false;  // every rank has all of it
  };
  struct Module {
    std::string name;       // "model.layers.*.self_attn.q_proj"
    std::string parameter;  // "weight" but for buffers and biases that are split in another way; "" if the name has it
    TensorParallelPlan plan = TensorParallelPlan::kReplicate;
    std::vector<Expression> shape;     // of the parameter; empty: a scalar
    bool any_shape = false;            // it is not checked; of replicated, optional ones alone
    std::optional<std::uint32_t> dim;  // that is split, where it is another than the plan's word says
    Expression bias;                   // whether there is a bias too
    Expression when;                   // whether there is such a module, in a layer
    std::vector<Packed> packed;        // of packed plans; empty: two halves
    Expression stride;                 // partition_stride of a plan that is not packed; none: 1
    Expression heads;                  // parts that stay whole along the dim that is split
    Expression experts;                // how many: of the name's second "*", or one under the other in dim 0
    bool stacked = false;              // the latter
    Expression first_expert;           // the number of the first in names; nothing: 0
    Expression items;                  // how many are in a list that is not of experts: of the name's last "*"
    std::string variant;               // which variant of a layer has it; empty: all
    bool optional = false;             // a checkpoint may lack it
    bool on_last_stage = false;        // for modules outside the layers
    bool stage_assumed = false;        // behind the layers, though nothing says that it is on the last stage
    std::string tied_to;               // the module whose weight this one shares if it is tied (are_tied)
    std::uint64_t line = 0;            // of Family::file; 0: not known

    /// Whether the name has a star for the number of each of `items` or `experts`, behind that of the layer.
    bool is_list() const { return items || (experts && !stacked); }
    /// Whether every layer has one. A list outside the layers has the star of its items alone.
    bool is_layered() const;
  };
  struct Attention {
    std::string module;  // "model.layers.*.self_attn"
    std::string query, key, value, output;
    std::string fused;                                // the name of the fused projection
    bool fuse_qkv = false;                            // one weight for all three, unless a request says otherwise
    std::optional<std::uint64_t> kv_size_multiplier;  // unless a request says another; none: the smallest
  };
  struct Fused {
    std::string module;
    std::string name;
    std::vector<std::string> linears;
    std::uint32_t axis = 0;  // fuse_axis: 1 if the linears are split along their inputs
  };

  std::string model_type;
  /// Set for larger models (multimodal) alone, with nothing else: the model_type of the language model if config.json's
  /// text_config has none.
  std::string language_model;
  std::string layers;                    // prefix of a layer's name: "model.layers"; empty: no stack of layers
  Expression num_layers;                 // how many there are; none without `layers`
  std::shared_ptr<const Json> defaults;  // an object, for keys that config.json lacks or has as null
  /// The same for keys that only a part of config.json may lack, such as text_config: Transformers leaves out there
  /// what its configuration class has. Null: none.
  std::shared_ptr<const Json> class_defaults;
  std::map<std::string, Expression, std::less<>> definitions;  // names for expressions that repeat
  std::vector<Module> modules;                                 // in state-dict order
  std::optional<Attention> attention;
  std::vector<Fused> fused;
  /// Modules outside the layers ("mtp") whose tensors the checkpoint may have, whatever they are: every rank of the
  /// last stage has all of them.
  std::vector<std::string> whole;
  /// Modules in that of `attention` which NxD Inference calls otherwise, by name; else it has the names of the
  /// checkpoint. Nothing where its names are not known.
  std::optional<std::map<std::string, std::string>> inference_names;
  /// What other programs call the parameters in checkpoints of whole tensors; only entries whose parameters the family has.
  std::vector<std::shared_ptr<const Scheme>> schemes;
  std::string json_text;          // what it was read from
  std::filesystem::path file;     // where somebody wrote it, for errors; empty for the built-in ones
  std::uint64_t layers_line = 0;  // of num_layers in `file`; 0: not known
};

/// The names of a family's parameters, with stars for numbers.
std::set<std::string, std::less<>> parameter_names(const Family& family);

/// Whether `spec` is a description of all modules, so that config.json is needed only for the keys that it names.
bool describes_model(const std::shared_ptr<const Family>& spec);

/// The built-in family of a name; null where there is none. It is the same at each call, and lives as long as the
/// program.
std::shared_ptr<const Family> builtin_family(std::string_view model_type);

/// The built-in schemes for checkpoints of whole tensors, with what they have for a family.
std::vector<std::shared_ptr<const Scheme>> builtin_schemes_for(const Family& family);

/// What a built-in scheme has for a family; null if it does not know the family.
std::shared_ptr<const Scheme> builtin_scheme(std::string_view program, const Family& family);

/// The model_types of the built-in families, sorted.
std::vector<std::string> known_model_types();

/// Whether a built-in family is another one under a second name: like it, and with no difference.
bool is_second_name(std::string_view model_type);

/// How many built-in families are described as differences from each.
std::map<std::string, std::size_t> families_like();

/// `pattern` with the layer's number for its "*".
std::string expand_layer(std::string_view pattern, std::uint64_t layer);

}  // namespace reshard
