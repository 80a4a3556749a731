#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace reshard {

inline constexpr const char* kLoraPeftType = "lora";

/// One of several matrices in a parameter, concatenated along the split dim.
struct PackedPart {
  std::uint64_t size = 0;   // size of the whole matrix along that dim, in elements
  bool replicated = false;  // every rank has the whole matrix

  friend bool operator==(const PackedPart&, const PackedPart&) = default;
};

/// How a parallel layer splits a parameter (NxD's attributes of the parameter). The weight of a linear has the shape
/// (out, in): ColumnParallelLinear splits dim 0, RowParallelLinear dim 1, ParallelEmbedding dim 0 (the vocabulary).
struct ParallelParameter {
  std::string name;                    // fully qualified, as in the rank's state dict
  bool tensor_model_parallel = false;  // false: replicated, and the other members are ignored
  std::uint32_t partition_dim = 0;
  std::uint32_t partition_stride =
      1;  // the dim is split into num_partitions × stride chunks; rank r holds r, r+T, r+2T, …
  std::uint32_t num_partitions = 1;  // T
  /// For matrices that are split separately and that a stride cannot describe, because their sizes differ or some are
  /// replicated; the stride is then 1. NxD's metadata has no such key; reshard adds "packed".
  std::vector<PackedPart> packed;
  /// For experts that are distributed over expert-parallel ranks (NxD's expert_model_parallel), described by keys that
  /// reshard adds: the parameter of a single expert is on one such rank; of experts stacked in dim 0, each rank has an
  /// equal slice, in order. Other parameters are on every rank.
  std::optional<std::uint32_t> expert_rank;
  std::uint32_t expert_partitions = 1;

  bool expert_model_parallel() const { return expert_rank.has_value() || expert_partitions > 1; }

  friend bool operator==(const ParallelParameter&, const ParallelParameter&) = default;
};

/// Linear layers of one module that are fused into one. Each is split over the ranks along `fuse_axis`; the slices of a
/// rank are fused along the same axis, in the order of `linear_names`.
struct FusedLinearsSpec {
  std::string fused_linear_name;
  std::vector<std::string> linear_names;
  bool bias = false;
  std::uint32_t fuse_axis = 0;               // 0 "column", 1 "row"
  std::vector<std::uint64_t> original_dims;  // full sizes of the linears along fuse_axis, in elements
  std::uint32_t tp_size = 1;
  std::string peft_type;  // "lora" if the fused linear is adapted; otherwise empty
  /// For adapters whose lora_A are stacked: the number of rows of each linear. Empty if all share one, and in every
  /// file.
  std::vector<std::uint64_t> stacked_ranks;

  friend bool operator==(const FusedLinearsSpec&, const FusedLinearsSpec&) = default;
};

/// Order of the replicas of key/value heads over the ranks.
enum class KvReplication : std::uint8_t {
  kTiled,     // all heads, then all heads again (K0 K1 K0 K1): optimum-neuron, NxD on trn1
  kAdjacent,  // replicas of a head are adjacent (K0 K0 K1 K1): trn2
};

/// More heads than any model has; limits the lists of heads.
inline constexpr std::uint32_t kMaxHeads = 1 << 14;

/// Attention whose key/value heads may not divide evenly over the ranks. They are repeated `kv_size_multiplier` times,
/// and the query heads (and the columns of the output projection) are reordered to match.
struct GQAQKVColumnParallelLinearSpec {
  std::string gqa_qkv_projection_name;
  std::string query_projection_name;
  std::string key_projection_name;
  std::string value_projection_name;
  std::string output_projection_name;
  std::uint32_t num_attention_heads = 0;
  std::uint32_t num_key_value_heads = 0;
  std::uint32_t kv_size_multiplier = 1;
  std::uint64_t q_output_size_per_partition = 0;   // rows of a rank's query weight
  std::uint64_t kv_output_size_per_partition = 0;  // rows of a rank's key (and value) weight
  bool fuse_qkv = false;
  bool bias = false;
  std::uint32_t tp_size = 1;
  std::string peft_type;                     // same as in FusedLinearsSpec
  std::vector<std::uint64_t> stacked_ranks;  // for query, key and value; same as in FusedLinearsSpec
  /// Not recorded in the metadata, where it is always kTiled.
  KvReplication replication = KvReplication::kTiled;
  /// Pads uneven slots and heads with heads of zeros: slots at the end, query heads after those of each key/value head.
  /// Not recorded in the metadata.
  bool pad_heads = false;

  friend bool operator==(const GQAQKVColumnParallelLinearSpec&, const GQAQKVColumnParallelLinearSpec&) = default;

  /// Key/value slots per rank: num_key_value_heads × kv_size_multiplier / tp_size, rounded up if pad_heads.
  std::uint32_t slots_per_rank() const;
  /// Number of query heads per slot.
  std::uint32_t heads_per_slot() const;
  /// Returns the key/value head in each slot of the rank; num_key_value_heads represents a head of zeros.
  std::vector<std::uint32_t> key_value_heads(std::uint32_t tp_rank) const;
  /// Returns the query heads of a rank, in stored order; num_attention_heads represents a head of zeros.
  std::vector<std::uint32_t> query_heads(std::uint32_t tp_rank) const;
};

using TransformationSpec = std::variant<FusedLinearsSpec, GQAQKVColumnParallelLinearSpec>;

/// The specs of one module ("model.layers.0.mlp") for a stage; empty if the module is on another stage.
struct ModuleSpecs {
  std::string module_fully_qualified_name;
  std::vector<TransformationSpec> specs;

  friend bool operator==(const ModuleSpecs&, const ModuleSpecs&) = default;
};

/// The contents of `mp_metadata_pp_rank_Y.json`, for one pipeline rank.
struct StageMetadata {
  std::vector<ParallelParameter> parameters;
  std::vector<ModuleSpecs> modules;

  friend bool operator==(const StageMetadata&, const StageMetadata&) = default;
};

/// Returns why `multiplier` cannot be used for these heads, or an empty string. T % m == 0 must hold and, without
/// `pad_heads`, also (G × m) % T == 0 and (H / G) % m == 0.
std::string multiplier_problem(std::uint64_t heads, std::uint64_t kv_heads, std::uint64_t tp, std::uint64_t multiplier,
                               bool pad_heads = false);

/// Returns the multipliers that can be used, ascending.
std::vector<std::uint64_t> legal_multipliers(std::uint64_t heads, std::uint64_t kv_heads, std::uint64_t tp,
                                             bool pad_heads = false);

/// The default multiplier of the reference's model classes: max(1, T / G). They do not check whether it places whole
/// heads.
inline std::uint64_t usual_multiplier(std::uint64_t kv_heads, std::uint64_t tp) {
  return std::max<std::uint64_t>(1, tp / kv_heads);
}

/// Whether attention needs GQAQKVColumnParallelLinear: the key/value heads do not divide evenly over the ranks.
inline bool needs_gqa_qkv(std::uint64_t kv_heads, std::uint64_t tp) {
  return kv_heads < tp || kv_heads % tp != 0;
}

}  // namespace reshard
