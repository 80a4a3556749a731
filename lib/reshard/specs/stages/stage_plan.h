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
  kFused,              // one column-parallel linear; requires as many key/value heads as query heads
  kGroupedQuery,       // GQAQKVColumnParallelLinear: weight_q, weight_k, weight_v
  kFusedGroupedQuery,  // same with fuse_qkv: weight_qkv
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

/// Choices for the partitioning of a model's parameters.
struct PartitionOptions {
  AttentionForm attention = AttentionForm::kSeparate;  // requested form; attention_form() returns the actual one
  std::optional<std::uint64_t> kv_size_multiplier;     // default: the smallest that places whole heads
  std::optional<bool> fuse_linears;                    // whether to fuse Family::fused; default: true
  bool separate = false;  // for inference: fuses nothing, and neither replicates heads nor keeps them whole
  bool pad = false;       // with `separate`: pads sizes that do not divide evenly over the ranks, if possible
  std::optional<KvReplication> replication;  // default: kTiled
  bool pad_heads = false;                    // see GQAQKVColumnParallelLinearSpec
};

/// A stored parameter without bytes of its own: a second name for `source`.
struct TiedParameter {
  std::string name;    // "lm_head.weight"
  std::string source;  // "model.embed_tokens.weight"
};

/// One pipeline rank: its metadata, and the tied parameters that the metadata does not list.
struct StagePlan {
  StageMetadata metadata;
  std::vector<TiedParameter> tied;
};

/// Returns the form of attention on `tp` ranks. Grouped query is used if requested, or if the key/value heads do not
/// divide evenly over the ranks. Fusing is dropped if three linears are stored and there are fewer key/value heads than
/// query heads. Always kSeparate for models whose projections are unchanged: quantised models, and models for
/// inference.
AttentionForm attention_form(const Model& model, std::uint64_t tp, const PartitionOptions& options);

/// Returns the spec of a GQA attention module. Requires that attention_form is a grouped query form, and that
/// tensor_parallel_problem returns std::nullopt.
GQAQKVColumnParallelLinearSpec gqa_spec(const Model& model, std::uint64_t tp, const PartitionOptions& options);

/// Returns the options that a sharded checkpoint of `model` was partitioned with, as recorded in the transformation
/// specs of its metadata.
PartitionOptions recorded_options(const std::vector<StageMetadata>& stages, const Model& model);

/// Returns the metadata of a parameter that is stored under its own name, split over `tp` ranks, and experts over `ep`.
ParallelParameter own_parameter(const ModelParameter& parameter, std::uint32_t tp, std::uint32_t ep = 1);

/// Returns why `tp` ranks cannot share the parameter, or std::nullopt. Without `whole_heads`, heads may be split.
std::optional<std::string> split_problem(const ModelParameter& parameter, std::uint64_t tp, bool whole_heads = true);

/// Whether the parameter can be padded at its end along the split dim. Packed matrices cannot.
bool can_pad(const ModelParameter& parameter);

/// Whether the parameter interleaves gate and up of an MLP or of experts: each row or column of one is next to that of
/// the other.
bool has_pairs(const Model& model, const ModelParameter& parameter);

/// Returns the size of the parameter along split_dim, padded so that it divides evenly over `tp` ranks. In a quantised
/// model, blocks and groups stay whole, and equal sizes in different linears stay equal. Pairs (see has_pairs) stay
/// whole, and their number equals the inputs of the next linear.
std::uint64_t padded_size(const Model& model, const ModelParameter& parameter, std::uint64_t tp);

/// Returns why the model cannot be split over `tp` ranks, or std::nullopt. The error names the tensor, the dim and the
/// sizes.
std::optional<Error> tensor_parallel_problem(const Model& model, std::uint64_t tp, const PartitionOptions& options);

/// Returns another reason why a model cannot be split over `tp` ranks, or std::nullopt.
using DegreeProblem = std::function<std::optional<Error>(std::uint64_t tp)>;

/// Returns the valid TP degrees up to 512, ascending.
/// \param more  additional checks, or null.
std::vector<std::uint64_t> legal_tp_degrees(const Model& model, const PartitionOptions& options,
                                            const DegreeProblem& more = nullptr);

/// Returns a hint that lists the valid TP degrees up to 512.
std::string describe_degrees(const std::function<bool(std::uint64_t)>& works);

/// Validates that the model can be split over `tp` ranks.
/// \throws Error kUsage or kUnsupported, listing the valid degrees, if it cannot.
void validate_split(const Model& model, std::uint64_t tp, const PartitionOptions& options,
                    const DegreeProblem& more = nullptr);

/// Returns the metadata of every pipeline rank. `holds` reports whether the checkpoint contains an optional
/// parameter of the family; `ep` is the number of expert-parallel ranks.
/// \throws like validate_split, and Error kUsage if experts cannot be distributed.
std::vector<StagePlan> plan_stages(const Model& model, std::uint32_t tp, const PipelinePartition& partition,
                                   const PartitionOptions& options,
                                   const std::function<bool(const std::string&)>& holds, std::uint32_t ep = 1);

}  // namespace reshard
