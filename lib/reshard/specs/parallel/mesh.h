// specs/: what a model family and a parallel training setup say about parameters, as data and as types: the mesh,
// pipeline stages, transformation specs, model families, metadata files. No tensors' bytes, no directories.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace reshard {

/// One rank of a checkpoint.
struct RankId {
  std::uint32_t tp_rank = 0;
  std::uint32_t pp_rank = 0;
  std::uint32_t dp_rank = 0;  // replicas of the same weights
  std::uint32_t ep_rank = 0;
  bool has_ep = false;  // experts are spread, and names say over which rank

  friend auto operator<=>(const RankId&, const RankId&) = default;
};

/// The grid of ranks: `tp` ranks of tensor parallelism × `pp` of pipeline parallelism × `ep` of expert parallelism,
/// `vpp` virtual stages a pipeline rank. Of a checkpoint that FSDP spreads, `tp` × `fsdp` ranks.
struct Mesh {
  std::uint32_t tp = 1;
  std::uint32_t pp = 1;
  std::uint32_t vpp = 1;
  std::uint32_t ep = 1;
  std::optional<std::uint32_t> fsdp;  // ranks over which the rows of all tensors are spread
  std::optional<std::uint32_t> dp;    // ranks over which the optimizer's states are spread, where they are there

  std::uint64_t stages() const { return std::uint64_t{pp} * vpp; }
};

/// More ranks than this in one dim is a typing error, not a machine.
inline constexpr std::uint32_t kMaxParallelDegree = 4096;

/// \throws Error kUsage unless tp, pp, vpp and ep all lie in 1 … kMaxParallelDegree.
void validate_mesh(const Mesh& mesh);

/// Which layers each stage holds: stage s has layers [first[s], first[s+1]). Interleaved stages: stage s lies on rank
/// s mod pp.
struct PipelinePartition {
  std::uint32_t pp = 1;
  std::vector<std::uint64_t> first;  // stages + 1 entries, strictly ascending

  std::uint32_t stages() const { return static_cast<std::uint32_t>(first.size() - 1); }
  std::uint32_t stage_of(std::uint64_t layer) const;
  std::uint32_t rank_of_stage(std::uint32_t stage) const { return stage % pp; }
  std::uint32_t rank_of_layer(std::uint64_t layer) const { return rank_of_stage(stage_of(layer)); }
  std::uint32_t first_rank() const { return 0; }
  std::uint32_t last_rank() const { return rank_of_stage(stages() - 1); }
  /// The last layer of every stage but the last, which is how cuts are named.
  std::vector<std::uint64_t> cuts() const;
};

/// `layers` dealt evenly: layers div stages each, the remainder one more each for the last stages (NxD's auto
/// partition).
/// \throws Error kUsage if there are more stages than layers.
PipelinePartition partition_evenly(std::uint64_t layers, const Mesh& mesh);

/// Cut where the user says. `cuts` are module names such as "model.layers.3" (the last layer of a stage), ascending,
/// one fewer than there are stages; `layer_prefix` is what they must begin with ("model.layers").
/// \throws Error kUsage.
PipelinePartition partition_by_cuts(std::uint64_t layers, const Mesh& mesh, const std::vector<std::string>& cuts,
                                    const std::string& layer_prefix);

}  // namespace reshard
