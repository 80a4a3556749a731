// specs/: model families and parallel training setups, as data and types: the mesh, pipeline stages, transformation
// specs, model families, metadata files. Independent of tensor data and directories.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace reshard {

/// Coordinates of a rank of a checkpoint.
struct RankId {
  std::uint32_t tp_rank = 0;
  std::uint32_t pp_rank = 0;
  std::uint32_t dp_rank = 0;  // replicas of the same weights
  std::uint32_t ep_rank = 0;
  bool has_ep = false;  // experts are distributed over ranks, and names contain ep_rank

  friend auto operator<=>(const RankId&, const RankId&) = default;
};

/// The grid of ranks: `tp` tensor-parallel × `pp` pipeline-parallel × `ep` expert-parallel ranks, with `vpp` virtual
/// stages per pipeline rank. For FSDP checkpoints, `tp` × `fsdp` ranks.
struct Mesh {
  std::uint32_t tp = 1;
  std::uint32_t pp = 1;
  std::uint32_t vpp = 1;
  std::uint32_t ep = 1;
  std::optional<std::uint32_t> fsdp;  // number of ranks that the rows of all tensors are sharded over
  std::optional<std::uint32_t> dp;    // number of ranks that optimizer states are sharded over, if present

  std::uint64_t stages() const { return std::uint64_t{pp} * vpp; }
};

/// Larger degrees are typing errors.
inline constexpr std::uint32_t kMaxParallelDegree = 4096;

/// \throws Error kUsage unless tp, pp, vpp and ep are in 1 … kMaxParallelDegree.
void validate_mesh(const Mesh& mesh);

/// The layers of each stage: stage s has layers [first[s], first[s+1]). Stages are interleaved: stage s is on rank s
/// mod pp.
struct PipelinePartition {
  std::uint32_t pp = 1;
  std::vector<std::uint64_t> first;  // stages + 1 entries, strictly ascending

  std::uint32_t stages() const { return static_cast<std::uint32_t>(first.size() - 1); }
  std::uint32_t stage_of(std::uint64_t layer) const;
  std::uint32_t rank_of_stage(std::uint32_t stage) const { return stage % pp; }
  std::uint32_t rank_of_layer(std::uint64_t layer) const { return rank_of_stage(stage_of(layer)); }
  std::uint32_t first_rank() const { return 0; }
  std::uint32_t last_rank() const { return rank_of_stage(stages() - 1); }
  /// The last layer of every stage except the last stage; these layers name the cuts.
  std::vector<std::uint64_t> cuts() const;
};

/// Distributes `layers` evenly: layers div stages for each stage; the last stages get one more for the remainder (NxD's
/// auto partition).
/// \throws Error kUsage if there are more stages than layers.
PipelinePartition partition_evenly(std::uint64_t layers, const Mesh& mesh);

/// Partitions at the given cuts. `cuts` are ascending module names such as "model.layers.3" (the last layer of a
/// stage), one fewer than stages; they must begin with `layer_prefix` ("model.layers").
/// \throws Error kUsage if they do not.
PipelinePartition partition_by_cuts(std::uint64_t layers, const Mesh& mesh, const std::vector<std::string>& cuts,
                                    const std::string& layer_prefix);

}  // namespace reshard
