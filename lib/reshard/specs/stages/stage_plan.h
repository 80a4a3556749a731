#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/specs/model/model.h"
#include "reshard/specs/parallel/mesh.h"
#include "reshard/specs/parallel/transformation_specs.h"

namespace reshard {

/// How the query, key and value projections are stored.
enum class AttentionForm : std::uint8_t {
  kSeparate,           // three column-parallel linears
  kFused,              // one column-parallel linear; only with as many key/value heads as query heads
  kGroupedQuery,       // GQAQKVColumnParallelLinear: weight_q, weight_k, weight_v
  kFusedGroupedQuery,  // the same with fuse_qkv: weight_qkv
};

constexpr bool is_grouped_query(AttentionForm form) {
  return form == AttentionForm::kGroupedQuery || form == AttentionForm::kFusedGroupedQuery;
}

constexpr bool is_fused(AttentionForm form) {
  return form == AttentionForm::kFused || form == AttentionForm::kFusedGroupedQuery;
}

constexpr AttentionForm attention_form_of(bool grouped_query, bool fused) {
  if (grouped_query) return fused ? AttentionForm::kFusedGroupedQuery : AttentionForm::kGroupedQuery;
  return fused ? AttentionForm::kFused : AttentionForm::kSeparate;
}

/// How a model's parameters are partitioned, as far as that is a choice.
struct PartitionOptions {
  AttentionForm attention = AttentionForm::kSeparate;  // asked for; attention_form() says which one it becomes
  std::optional<std::uint64_t> kv_size_multiplier;     // default: the smallest that places whole heads
  std::optional<bool> fuse_linears;                    // those of Family::fused; default: they are fused
  bool separate = false;  // nothing is fused, no heads are replicated or kept whole: for inference
  bool pad = false;       // with `separate`: sizes that the ranks do not divide are padded where that can be
  KvReplication replication = KvReplication::kTiled;
  bool pad_heads = false;  // as of GQAQKVColumnParallelLinearSpec
};

/// A stored parameter that has no bytes of its own: it is `source` under a second name.
struct TiedParameter {
  std::string name;    // "lm_head.weight"
  std::string source;  // "model.embed_tokens.weight"
};

/// What one pipeline rank holds: its metadata, and the tied parameters that metadata does not list.
struct StagePlan {
  StageMetadata metadata;
  std::vector<TiedParameter> tied;
};

/// The form that attention gets on `tp` ranks. Grouped query is taken if it is asked for or if the ranks do not divide
/// the key/value heads; fusing is dropped if three linears are stored and there are fewer key/value heads than query
/// heads. Always kSeparate for models whose projections stay as they are: quantised ones, and those for inference.
AttentionForm attention_form(const Model& model, std::uint64_t tp, const PartitionOptions& options);

/// The spec of a GQA attention module. Call only if attention_form says grouped query and tensor_parallel_problem
/// nothing.
GQAQKVColumnParallelLinearSpec gqa_spec(const Model& model, std::uint64_t tp, const PartitionOptions& options);

/// The options with which the stages of a sharded checkpoint of `model` were partitioned, as far as the transformation
/// specs in their metadata record them.
PartitionOptions recorded_options(const std::vector<StageMetadata>& stages, const Model& model);

/// What metadata says of a parameter that is split over `tp` ranks, and experts over `ep`, stored under its own name.
ParallelParameter own_parameter(const ModelParameter& parameter, std::uint32_t tp, std::uint32_t ep = 1);

/// Why `tp` ranks cannot share the parameter, or nothing. Without `whole_heads` heads may be split.
std::optional<std::string> split_problem(const ModelParameter& parameter, std::uint64_t tp, bool whole_heads = true);

/// Whether the parameter may get more elements at its end along the dim that is split. Matrices packed in one may not.
bool can_pad(const ModelParameter& parameter);

/// Whether the parameter has gate and up of an MLP or of experts in pairs: each row or column of one next to that of the
/// other.
bool has_pairs(const Model& model, const ModelParameter& parameter);

/// The parameter's size along split_dim, padded so that `tp` ranks share it evenly. In a quantised model, blocks and
/// groups stay whole, and what has the same size in one linear and in another has it still. Pairs (as of has_pairs) stay
/// whole and are as many as the next linear's inputs.
std::uint64_t padded_size(const Model& model, const ModelParameter& parameter, std::uint64_t tp);

/// Why the model cannot be split over `tp` ranks, or nothing. The error names the tensor, the dim and the sizes.
std::optional<Error> tensor_parallel_problem(const Model& model, std::uint64_t tp, const PartitionOptions& options);

/// Why so many ranks cannot have a model, for another reason than tensor_parallel_problem; or nothing.
using DegreeProblem = std::function<std::optional<Error>(std::uint64_t tp)>;

/// The TP degrees up to 512 for which there is no problem, ascending.
/// \param more  further problems, or null.
std::vector<std::uint64_t> legal_tp_degrees(const Model& model, const PartitionOptions& options,
                                            const DegreeProblem& more = nullptr);

/// A hint that lists the tensor-parallel degrees up to 512 that work.
std::string describe_degrees(const std::function<bool(std::uint64_t)>& works);

/// That the model can be split over `tp` ranks.
/// \throws Error kUsage or kUnsupported, with the degrees that work, if it cannot.
void validate_split(const Model& model, std::uint64_t tp, const PartitionOptions& options,
                    const DegreeProblem& more = nullptr);

/// The metadata of every pipeline rank. `holds` says whether the checkpoint has a parameter that the family calls
/// optional; `ep` is the number of expert-parallel ranks.
/// \throws as validate_split, and Error kUsage for experts that cannot be shared.
std::vector<StagePlan> plan_stages(const Model& model, std::uint32_t tp, const PipelinePartition& partition,
                                   const PartitionOptions& options,
                                   const std::function<bool(const std::string&)>& holds, std::uint32_t ep = 1);

}  // namespace reshard
