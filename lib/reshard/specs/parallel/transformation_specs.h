#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace reshard {

inline constexpr const char* kLoraPeftType = "lora";

/// One of several matrices in a parameter, one after the other along the dim that is split.
struct PackedPart {
  std::uint64_t size = 0;   // of the whole matrix along that dim, in elements
  bool replicated = false;  // every rank has all of it

  friend bool operator==(const PackedPart&, const PackedPart&) = default;
};

/// How a parallel layer splits one parameter (NxD's attributes on the parameter). A weight of a linear layer has shape
/// (out, in): ColumnParallelLinear splits dim 0, RowParallelLinear dim 1, ParallelEmbedding dim 0 (the vocabulary).
struct ParallelParameter {
  std::string name;                    // fully qualified, as in the rank's state dict
  bool tensor_model_parallel = false;  // false: replicated, and the rest does not count
  std::uint32_t partition_dim = 0;
  std::uint32_t partition_stride =
      1;  // the dim is split into num_partitions × stride chunks; rank r holds r, r+T, r+2T, …
  std::uint32_t num_partitions = 1;  // T
  /// Of matrices that are split each on its own and cannot be said with a stride, as they differ in size or some are
  /// replicated: those, and a stride of 1. NxD's metadata has no such key; ours adds "packed".
  std::vector<PackedPart> packed;
  /// Of experts that are spread over expert-parallel ranks (NxD's expert_model_parallel). Our own keys say how: a
  /// single expert's parameter is on one such rank; of those stacked in dim 0 each rank has an equal part, in order.
  /// All else every rank has.
  std::optional<std::uint32_t> expert_rank;
  std::uint32_t expert_partitions = 1;

  bool expert_model_parallel() const { return expert_rank.has_value() || expert_partitions > 1; }

  friend bool operator==(const ParallelParameter&, const ParallelParameter&) = default;
};

/// Linear layers of one module fused into one. Each is split over the ranks along `fuse_axis`; a rank's slices are
/// fused along the same axis, in the order of `linear_names`.
struct FusedLinearsSpec {
  std::string fused_linear_name;
  std::vector<std::string> linear_names;
  bool bias = false;
  std::uint32_t fuse_axis = 0;               // 0 "column", 1 "row"
  std::vector<std::uint64_t> original_dims;  // full sizes of the linears along fuse_axis, in elements
  std::uint32_t tp_size = 1;
  std::string peft_type;  // "lora" where the fused linear is adapted; empty otherwise
  /// Of adapters whose lora_A are stacked: the rows of each linear's. Empty where all share one, and in every file.
  std::vector<std::uint64_t> stacked_ranks;

  friend bool operator==(const FusedLinearsSpec&, const FusedLinearsSpec&) = default;
};

/// In which order the copies of key/value heads lie over the ranks.
enum class KvReplication : std::uint8_t {
  kTiled,     // one round of all heads after the other (K0 K1 K0 K1): optimum-neuron, NxD on trn1
  kAdjacent,  // the copies of a head beside each other (K0 K0 K1 K1): trn2
};

/// More heads than any model has, by far; it bounds the lists of them.
inline constexpr std::uint32_t kMaxHeads = 1 << 14;

/// Attention whose key/value heads may not divide over the ranks: they are repeated `kv_size_multiplier` times, and the
/// query heads (and the output projection's columns) are put in the order that belongs to it.
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
  std::string peft_type;                     // as of FusedLinearsSpec
  std::vector<std::uint64_t> stacked_ranks;  // of query, key and value; as of FusedLinearsSpec
  /// The metadata has no word for it: there it is always kTiled.
  KvReplication replication = KvReplication::kTiled;
  /// Slots and heads that the ranks do not divide are padded with heads of zeros: slots at the end, query heads after
  /// those of each key/value head. The metadata has no word for it either.
  bool pad_heads = false;

  friend bool operator==(const GQAQKVColumnParallelLinearSpec&, const GQAQKVColumnParallelLinearSpec&) = default;

  /// Key/value slots a rank has: num_key_value_heads × kv_size_multiplier / tp_size, rounded up with pad_heads.
  std::uint32_t slots_per_rank() const;
  /// Query heads that belong to a slot.
  std::uint32_t heads_per_slot() const;
  /// The key/value head in each of the rank's slots; num_key_value_heads for one of zeros.
  std::vector<std::uint32_t> key_value_heads(std::uint32_t tp_rank) const;
  /// The query heads of a rank, in the order they are stored; num_attention_heads for one of zeros.
  std::vector<std::uint32_t> query_heads(std::uint32_t tp_rank) const;
};

using TransformationSpec = std::variant<FusedLinearsSpec, GQAQKVColumnParallelLinearSpec>;

/// The specs of one module ("model.layers.0.mlp") that concern a stage; none where the module lies on another.
struct ModuleSpecs {
  std::string module_fully_qualified_name;
  std::vector<TransformationSpec> specs;

  friend bool operator==(const ModuleSpecs&, const ModuleSpecs&) = default;
};

/// What one pipeline rank's `mp_metadata_pp_rank_Y.json` says.
struct StageMetadata {
  std::vector<ParallelParameter> parameters;
  std::vector<ModuleSpecs> modules;

  friend bool operator==(const StageMetadata&, const StageMetadata&) = default;
};

/// Why `multiplier` cannot be used for these heads, or empty: T % m == 0, and without `pad_heads` (G × m) % T == 0 and
/// (H / G) % m == 0 must hold.
std::string multiplier_problem(std::uint64_t heads, std::uint64_t kv_heads, std::uint64_t tp, std::uint64_t multiplier,
                               bool pad_heads = false);

/// The multipliers that can be used, ascending.
std::vector<std::uint64_t> legal_multipliers(std::uint64_t heads, std::uint64_t kv_heads, std::uint64_t tp,
                                             bool pad_heads = false);

/// The multiplier that the reference's model classes take by themselves: max(1, T / G). They do not ask whether it
/// places whole heads.
inline std::uint64_t usual_multiplier(std::uint64_t kv_heads, std::uint64_t tp) {
  return std::max<std::uint64_t>(1, tp / kv_heads);
}

/// Whether attention needs GQAQKVColumnParallelLinear: key/value heads that do not divide over the ranks.
inline bool needs_gqa_qkv(std::uint64_t kv_heads, std::uint64_t tp) {
  return kv_heads < tp || kv_heads % tp != 0;
}

}  // namespace reshard
