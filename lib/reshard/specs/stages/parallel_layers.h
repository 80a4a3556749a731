#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "reshard/specs/parallel/transformation_specs.h"

namespace reshard {

// NxD's parallel layers (neuronx_distributed.parallel_layers), by what they split. A layer's name is that of its
// module: "model.layers.0.mlp.up_proj". A weight of a linear has the shape (out, in), T is the number of
// tensor-parallel ranks.

/// A linear that is split along its outputs. A rank has (out / T, in) of the weight and (out / T) of the bias. With a
/// stride the weight is that many matrices, one under the other, and a rank has its part of each: of gate_up_proj 2.
struct ColumnParallelLinear {
  std::string name;
  bool bias = false;
  std::uint32_t stride = 1;
};

/// A linear that is split along its inputs. A rank has (out, in / T) of the weight, and all of the bias.
struct RowParallelLinear {
  std::string name;
  bool bias = false;
};

/// An embedding. Of (words, size) a rank has (words / T, size), or (words, size / T) across the embedding.
struct ParallelEmbedding {
  std::string name;
  bool across_embedding = false;  // NxD's shard_across_embedding
};

/// Query, key and value projections whose key/value heads do not divide over the ranks. A rank has
/// (q_output_size_per_partition, in) of weight_q and (kv_output_size_per_partition, in) of weight_k and weight_v, or
/// all three, one under the other, in weight_qkv where the spec fuses them; biases likewise.
struct GQAQKVColumnParallelLinear {
  std::string module;  // that of attention, "model.layers.0.self_attn"; the spec has the layer's name in it
  GQAQKVColumnParallelLinearSpec spec;
};

/// A module of which every rank has all: a norm.
struct ReplicatedLayer {
  std::string name;
  bool bias = false;
};

using ParallelLayer = std::variant<ColumnParallelLinear, RowParallelLinear, ParallelEmbedding,
                                   GQAQKVColumnParallelLinear, ReplicatedLayer>;

/// What the metadata of a stage with these layers says of their parameters, in order. `tp` is T.
std::vector<ParallelParameter> parallel_parameters(const std::vector<ParallelLayer>& layers, std::uint32_t tp);

}  // namespace reshard
