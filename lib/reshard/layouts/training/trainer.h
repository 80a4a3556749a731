#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "reshard/layouts/ranks/rank_format.h"
#include "reshard/layouts/ranks/read_ranks.h"
#include "reshard/specs/stages/stage_plan.h"

namespace reshard {

/// See LayoutOption::why_idle.
std::string why_fused_linears_idle(const TargetPlan& plan, const Model& model);

/// Options of training layouts, which several of them have.
inline constexpr LayoutOption kFuseQkv{.name = "fuse-qkv",
                                       .type = LayoutOption::Type::kFlag,
                                       .help = "Fuse the query, key and value projections where the model can",
                                       .why_idle = why_fusion_idle};
inline constexpr LayoutOption kFuseLinears{
    .name = "fuse-linears",
    .type = LayoutOption::Type::kFlag,
    .help = "Fuse the linears that NxD's model classes fuse, such as gate_proj and up_proj (safetensors: always)",
    .why_idle = why_fused_linears_idle};

inline constexpr LayoutOption kPadHeads{
    .name = "pad-attn-heads",
    .type = LayoutOption::Type::kFlag,
    .help = "Pad attention heads with zeros to a multiple of the ranks; NxD Inference's layout always does"};

inline constexpr LayoutOption kDataParallel{
    .name = "dp",
    .type = LayoutOption::Type::kCount,
    .help = "Data-parallel ranks over which the optimizer's states are spread (default: the source's, or 1)",
    .of_states = true};

/// The partition that `values` choose; where they do not, that of `source`.
PartitionOptions given_or_kept(const OptionValues& values, const PartitionOptions& source);
/// The same for optimum-neuron, which has GQAQKVColumnParallelLinear only if the ranks do not divide the heads.
PartitionOptions optimum_options(const OptionValues& values, const PartitionOptions& source);

/// The trainer's settings that load the attention as it is stored, such as "fuse_qkv=True"; empty if the trainer needs
/// none.
std::string usual_settings(const AttentionReport& attention, std::uint32_t tp);

/// How a trainer stores ranks, whose modules are fused as NeuronX Distributed's model classes fuse them. Members that may be
/// null say so.
struct Trainer {
  /// How parameters are partitioned: as `values` say, else as the ranks that they come from (the defaults if they come
  /// from whole tensors), as far as the trainer can load that.
  PartitionOptions (*options_of)(const OptionValues& values, const PartitionOptions& source) = given_or_kept;
  /// Whether the linears that the family fuses (Family::fused) are stored fused; null: they are. `source` says
  /// whether the ranks that they come from chose that.
  bool (*fuses_linears)(const TargetRequest& request, const PartitionOptions& source) = nullptr;
  /// The option that pads heads; null if there is none.
  const LayoutOption* padding = nullptr;
  /// Refuses a model that the trainer has other names for, and options that it does not support; may be null.
  void (*validate_model)(const Model& model, std::uint32_t tp, const OptionValues& values) = nullptr;
  std::string (*attention_settings)(const AttentionReport& attention, std::uint32_t tp) = usual_settings;
  /// Metadata, markers and other texts next to the ranks; null if there are none.
  std::vector<TextFile> (*text_files)(const TargetRequest& request, const TargetPlan& plan,
                                      const std::vector<StagePlan>& stages) = nullptr;
  /// The programs that load what `plan` writes; a sentence.
  std::string (*loaded_by)(const TargetRequest& request, const TargetPlan& plan, const std::vector<StagePlan>& stages);
};

/// As Layout::plan.
TargetPlan plan_training(const Layout& layout, const Trainer& trainer, const TargetRequest& request,
                         const TargetContext& context);

/// Sets the mesh of `plan` and its stages.
/// \throws Error kUsage.
void plan_mesh(TargetPlan& plan, const TargetRequest& request, const Model& model);

/// The mesh that a request asks for.
/// \throws Error kUsage.
Mesh mesh_of(const TargetRequest& request);

/// The model, whose tensors are `logical`, can be split so, and ranks do not share a byte of packed elements; `padded`
/// are the options under which sizes are padded, and `padding` the layout's option for it, if it has one.
/// \throws Error kUsage, with what would work.
void validate_split(const Model& model, std::uint64_t tp, const PartitionOptions& options,
                    const PartitionOptions& padded, const LayoutOption* padding,
                    std::span<const LogicalTensor> logical);

/// Whether `logical` has a tensor of a name. Borrows `logical`.
HoldsName names_in(std::span<const LogicalTensor> logical);

/// Metadata files of all stages in `folder`.
std::vector<TextFile> metadata_files(const std::filesystem::path& folder, const std::vector<StagePlan>& plans);
/// The same, and the markers of a complete save.
std::vector<TextFile> marked_metadata_files(const std::filesystem::path& folder, const std::vector<StagePlan>& plans);

}  // namespace reshard
