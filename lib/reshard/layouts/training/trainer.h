#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "reshard/formats/pickle/plain_value.h"
#include "reshard/layouts/ranks/rank_format.h"
#include "reshard/layouts/ranks/read_ranks.h"
#include "reshard/layouts/training/module_rules.h"
#include "reshard/specs/peft/adapter_config.h"
#include "reshard/specs/stages/stage_plan.h"

namespace reshard {

/// See LayoutOption::why_idle.
std::string why_fused_linears_idle(const TargetPlan& plan, const Model& model);

/// Options that several training layouts have.
inline constexpr LayoutOption kFuseQkv{.name = "fuse-qkv",
                                       .type = LayoutOption::Type::kFlag,
                                       .help = "Fuse the query, key and value projections if the model supports it",
                                       .why_idle = why_fusion_idle};
inline constexpr LayoutOption kFuseLinears{
    .name = "fuse-linears",
    .type = LayoutOption::Type::kFlag,
    .help = "Fuse the linears that NxD's model classes fuse, such as gate_proj and up_proj (safetensors: always)",
    .why_idle = why_fused_linears_idle};

/// LayoutOption::why_idle of kWholeEmbeddings.
std::string why_whole_embeddings_idle(const TargetPlan& plan, const Model& model);

inline constexpr LayoutOption kWholeEmbeddings{
    .name = "disable-embedding-parallelization",
    .type = LayoutOption::Type::kFlag,
    .help = "Keep the embedding and the output matrix whole on every rank, like optimum-neuron with this setting",
    .why_idle = why_whole_embeddings_idle};

inline constexpr LayoutOption kPadHeads{
    .name = "pad-attn-heads",
    .type = LayoutOption::Type::kFlag,
    .help = "Pad attention heads with zeros to a multiple of the ranks; NxD Inference always pads"};

inline constexpr LayoutOption kDataParallel{
    .name = "dp",
    .type = LayoutOption::Type::kDegree,
    .help = "Data-parallel ranks to shard the optimizer's states over (default: as in the source, or 1)",
    .of_states = true};

/// Returns the partition that `values` request; defaults to that of `source`.
PartitionOptions given_or_kept(const OptionValues& values, const PartitionOptions& source);
/// Does the same for optimum-neuron, which has GQAQKVColumnParallelLinear only if the ranks do not divide the heads.
PartitionOptions optimum_options(const OptionValues& values, const PartitionOptions& source);

/// Returns the trainer's settings that load the attention as it is stored, such as "fuse_qkv=True"; empty if none are
/// required.
std::string usual_settings(const AttentionReport& attention, std::uint32_t tp);

/// How a trainer stores LoRA adapters.
struct AdapterForm {
  /// Returns the folder of an adapter's shards.
  std::filesystem::path (*folder)(const std::string& adapter);
  std::string_view omitted = {};    // prefix of PEFT's names that the files omit
  LoraFuse fuse = LoraFuse::kMean;  // how fused linears share a lora_A, by default
  /// Returns the settings of an adapter, which each file contains after its tensors. Null if they are in
  /// adapter_config.json instead. `modules` are the adapted ones. \throws Error kUnsupported.
  PlainValue::Dict (*settings)(const AdapterConfig& config, const std::vector<std::string>& modules) = nullptr;
  const char* loaded_by = "";  // how the trainer loads the files, a sentence
};

/// How a trainer stores ranks. Its modules are fused like NeuronX Distributed's model classes.
struct Trainer {
  /// Returns the partition of parameters: requested by `values`, or else that of the source's ranks (the defaults if
  /// the source has whole tensors), as far as the trainer can load it.
  PartitionOptions (*options_of)(const OptionValues& values, const PartitionOptions& source) = given_or_kept;
  /// Whether the linears that the family fuses (Family::fused) are stored fused. Null if they always are. `source`
  /// contains the choice of the source's ranks.
  bool (*fuses_linears)(const TargetRequest& request, const PartitionOptions& source) = nullptr;
  /// The option that pads heads; null if the trainer has none.
  const LayoutOption* padding = nullptr;
  bool names_modules = false;             // stores some modules under names of their own (ModuleRules)
  const AdapterForm* adapters = nullptr;  // null if the trainer has none
  /// Refuses models for which the trainer has other names, and unsupported options; may be null.
  void (*validate_model)(const Model& model, std::uint32_t tp, const OptionValues& values) = nullptr;
  std::string (*attention_settings)(const AttentionReport& attention, std::uint32_t tp) = usual_settings;
  /// Returns metadata, markers and other texts next to the ranks; null if the trainer has none.
  std::vector<TextFile> (*text_files)(const TargetRequest& request, const TargetPlan& plan,
                                      const std::vector<StagePlan>& stages) = nullptr;
  /// Returns the programs that load the output of `plan`, as a sentence.
  std::string (*loaded_by)(const TargetRequest& request, const TargetPlan& plan, const std::vector<StagePlan>& stages);
};

/// Adds a note on how attention is stored if the trainer requires `settings` for it.
void note_attention(const Model& model, const PartitionOptions& options, const std::string& settings, TargetPlan& plan);

/// The modules of a model that have names of their own in a trainer, and the options with what these imply.
struct RequestedModules {
  OptionValues values;
  std::optional<ModuleRules> rules;  // std::nullopt: there are no such modules
};
RequestedModules requested_modules(const Trainer& trainer, const OptionValues& values, const Model& model);

/// \throws Error kUnsupported if NxD Inference has quantised the model: `layout` has no place for the scales.
void validate_no_inference_scales(const Model& model, const char* layout);

/// Implements Layout::plan.
TargetPlan plan_training(const Layout& layout, const Trainer& trainer, const TargetRequest& request,
                         const TargetContext& context);

/// Sets the mesh and the stages of `plan`.
/// \throws Error kUsage.
void plan_mesh(TargetPlan& plan, const TargetRequest& request, const Model& model);

/// Returns the requested mesh.
/// \throws Error kUsage.
Mesh mesh_of(const TargetRequest& request);

/// Validates that the model, whose tensors are `logical`, can be split by `options` without ranks that share a byte of
/// packed elements. `padded` are the options under which sizes are padded, and `padding` is the layout's option for
/// padding, if any. `own` is a further check of the layout; may be null.
/// \throws Error kUsage, with a hint at valid choices.
void validate_split(const Model& model, std::uint64_t tp, const PartitionOptions& options,
                    const PartitionOptions& padded, const LayoutOption* padding, std::span<const LogicalTensor> logical,
                    const DegreeProblem& own = nullptr);

/// Returns a function that tests whether `logical` has a tensor of a given name. Borrows `logical`.
HoldsName names_in(std::span<const LogicalTensor> logical);

/// Returns the metadata files of all stages in `folder`.
std::vector<TextFile> metadata_files(const std::filesystem::path& folder, const std::vector<StagePlan>& plans);
/// Returns the markers of a complete save in `folder`. A trainer takes a save without the last one for incomplete.
std::vector<TextFile> marker_files(const std::filesystem::path& folder);
/// Returns both.
std::vector<TextFile> marked_metadata_files(const std::filesystem::path& folder, const std::vector<StagePlan>& plans);

}  // namespace reshard
