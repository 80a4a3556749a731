#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "reshard/layouts/ranks/rank_layout.h"
#include "reshard/specs/stages/stage_plan.h"

namespace reshard {

/// As of LayoutOption::why_idle.
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

/// Metadata files beside the shards of a training run say how they are partitioned, and modules are fused as NeuronX
/// Distributed's model classes fuse them.
class TrainingLayout : public RankLayout {
 public:
  std::vector<const LayoutOption*> options() const override { return {&kFuseQkv, &kKvSizeMultiplier}; }
  TargetPlan plan(const TargetRequest& request, const TargetContext& context) const override;

  /// Files beside those of ranks, in the layout's folder: metadata, markers.
  virtual std::vector<TextFile> stage_files(const std::vector<StagePlan>& plans) const = 0;
  /// Files in the output directory that say how the shards were made.
  virtual std::vector<TextFile> description_files(const TargetRequest&, const TargetPlan&) const { return {}; }
  /// How parameters are partitioned: as `values` say, else as the ranks that they come from (the defaults if they come
  /// from whole tensors), as far as the layout's trainer can load that.
  virtual PartitionOptions options_of(const OptionValues& values, const PartitionOptions& source) const;

 protected:
  void read_beside(Files& files, const ShardedCheckpoint& shards, const ReadContext& context,
                   Checkpoint& checkpoint) const override;
  void explain_misfit(Files& files, const ShardedCheckpoint& shards, Error& error) const override;

  /// Whether the linears that the family fuses (Family::fused) are stored fused; `source` says whether the ranks that
  /// they come from chose that.
  virtual bool fuses_linears(const TargetRequest&, const PartitionOptions& /*source*/) const { return true; }
  /// The programs that load what `plan` writes; a sentence.
  virtual std::string loaded_by(const TargetRequest& request, const TargetPlan& plan,
                                const std::vector<StagePlan>& stages) const = 0;

  /// The option that pads, where the layout has one, and `options` with it.
  virtual const LayoutOption* padding_option() const { return nullptr; }
  virtual PartitionOptions padded(PartitionOptions options) const { return options; }

  /// Refuses a model that the layout's trainer has other names for, and options that cannot be had for it.
  virtual void validate_model(const Model&, std::uint32_t /*tp*/, const OptionValues&) const {}
  /// The trainer's settings that load the attention as it is stored, such as "fuse_qkv=True"; empty if the trainer comes
  /// to it by itself.
  virtual std::string attention_settings(const AttentionReport& attention, std::uint32_t tp) const;

 private:
  void add_optimizer(TargetPlan& plan, const TargetRequest& request, const TargetContext& context,
                     const std::vector<StagePlan>& stages) const;
};

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

}  // namespace reshard
