#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "reshard/specs/parallel/transformation_specs.h"

namespace reshard {

// NxD's parallel layers (neuronx_distributed.parallel_layers). The name of a layer is the name of its module:
// "model.layers.0.mlp.up_proj". The weight of a linear has the shape (out, in); T is the number of tensor-parallel
// ranks.

/// A linear that is split along its outputs. A rank has (out / T, in) of the weight and (out / T) of the bias. With a
/// stride, the weight consists of that many matrices stacked along dim 0, and a rank has a slice of each; gate_up_proj
/// has 2.
struct ColumnParallelLinear {
  std::string name;
  bool bias = false;
  std::uint32_t stride = 1;
};

/// A linear that is split along its inputs. A rank has (out, in / T) of the weight, and the whole bias.
struct RowParallelLinear {
  std::string name;
  bool bias = false;
};

/// An embedding of shape (words, size). A rank has (words / T, size), or (words, size / T) if split across the
/// embedding.
struct ParallelEmbedding {
  std::string name;
  bool across_embedding = false;  // NxD's shard_across_embedding
};

/// Query, key and value projections whose key/value heads do not divide evenly over the ranks. A rank has
/// (q_output_size_per_partition, in) of weight_q and (kv_output_size_per_partition, in) of weight_k and weight_v. If
/// the spec fuses them, all three are stacked along dim 0 in weight_qkv. The same applies to biases.
struct GQAQKVColumnParallelLinear {
  std::string module;  // module of attention, "model.layers.0.self_attn"; the spec contains the layer's name in it
  GQAQKVColumnParallelLinearSpec spec;
};

/// A replicated module, such as a norm.
struct ReplicatedLayer {
  std::string name;
  bool bias = false;
};

using ParallelLayer = std::variant<ColumnParallelLinear, RowParallelLinear, ParallelEmbedding,
                                   GQAQKVColumnParallelLinear, ReplicatedLayer>;

/// Returns the parameters of a stage with these layers for its metadata, in order. `tp` is T.
std::vector<ParallelParameter> parallel_parameters(const std::vector<ParallelLayer>& layers, std::uint32_t tp);

}  // namespace reshard
