#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "reshard/layouts/core/layout.h"
#include "reshard/specs/family/expression.h"
#include "reshard/specs/model/model.h"

namespace reshard {

/// A setting of NxD Inference with which weights have another form.
struct NxdiSetting {
  const LayoutOption* option;
  const char* key;       // in the settings of neuron_config.json; the key of SchemeEntry::when is the part after a dot
  std::uint64_t absent;  // a number without a value
};

/// Returns the settings that choose names and how ranks share parameters.
std::span<const NxdiSetting> nxdi_settings();

/// Returns the option of a setting by its key; nullptr if it does not exist.
const LayoutOption* nxdi_option(const std::string& setting);

/// Returns the value of a setting according to `form`, or of a key of the model's config.json or of the defaults of its
/// family, for SchemeEntry::when.
/// \throws Error kBadInput for an unknown key.
ConfigValue setting_in(const OptionValues& form, const std::string& key, const Model& model);
/// Returns the value of a setting that is a number.
std::uint32_t degree_in(const OptionValues& form, const LayoutOption& option);
/// Removes a kDraftDegree that is the number of ranks.
void erase_usual_degree(OptionValues& form, std::uint32_t tp);

inline constexpr const char* kModels[] = {"target", "draft"};        // roles in a fused speculation
inline constexpr const char* kAdapterRoles[] = {"base", "adapter"};  // roles in multi-LoRA serving
inline constexpr const char* kMedusaRoles[] = {"main", "medusa-heads"};

/// Reads the neuron_config.json in `directory`; std::nullopt if the file does not exist. The options have a value of
/// kKernels.
/// \throws Error kBadInput for an invalid file; kUnsupported for settings that change the weights' values.
std::optional<CompiledModel> read_compiled_model(Files& files, const std::filesystem::path& directory);

/// Returns the model with this role that `compiled` loads; nullptr if it has none.
const CompiledModel* joined_model(const CompiledModel& compiled, const std::string& role);

/// Validates that the compiled model in `directory`, if there is one, loads `model`, in the planned form.
/// \throws Error kBadInput, with the options that would write this form.
void validate_compiled_form(Files& files, const TargetPlan& plan, const Model& model,
                            const std::filesystem::path& directory);

inline constexpr LayoutOption kVocabParallel{
    .name = "vocab-parallel",
    .type = LayoutOption::Type::kFlag,
    .help = "Split the embedding along the vocabulary instead of its columns",
    .of_source = true,
    .source_help = "The embedding is split along the vocabulary (default: from neuron_config.json or the names)"};
inline constexpr LayoutOption kContextDegree{
    .name = "cp-degree",
    .type = LayoutOption::Type::kDegree,
    .help = "Context-parallel degree: store attention a second time, for prompts, on TP / N ranks each",
    .of_source = true,
    .source_help = "Context-parallel degree (default: from neuron_config.json or the shapes)"};
inline constexpr LayoutOption kMlpContextDegree{
    .name = "mlp-cp-degree",
    .type = LayoutOption::Type::kDegree,
    .help = "Context-parallel degree of the MLP, which is stored a second time, for prompts",
    .of_source = true,
    .source_help = "Context-parallel degree of the MLP (default: from neuron_config.json or the shapes)"};
inline constexpr LayoutOption kAttentionDataDegree{
    .name = "attention-dp-degree",
    .type = LayoutOption::Type::kDegree,
    .help = "Data-parallel degree of attention, which is stored a second time, for tokens",
    .of_source = true,
    .source_help = "Data-parallel degree of attention (default: from neuron_config.json or the shapes)"};
inline constexpr LayoutOption kMoeExpertDegree{
    .name = "moe-ep-degree",
    .type = LayoutOption::Type::kDegree,
    .help = "Expert-parallel degree: each rank has 1 / N of the experts",
    .of_source = true,
    .source_help = "Expert-parallel degree (default: from neuron_config.json or the shapes)"};
inline constexpr LayoutOption kMoeTensorDegree{.name = "moe-tp-degree",
                                               .type = LayoutOption::Type::kDegree,
                                               .help =
                                                   "NxD Inference's moe_tp_degree, on which padding of the experts "
                                                   "depends (default: 1; with moe-ep-degree, TP / moe-ep-degree)"};
inline constexpr LayoutOption kPromptExpertDegree{
    .name = "moe-cte-ep-degree",
    .type = LayoutOption::Type::kDegree,
    .help = "Expert-parallel degree for prompts in NxD Inference's hybrid sharding, which stores experts twice",
    .of_source = true,
    .source_help = "Expert-parallel degree for prompts (default: from neuron_config.json or the shapes)"};
inline constexpr LayoutOption kTokenExpertDegree{
    .name = "moe-tkg-ep-degree",
    .type = LayoutOption::Type::kDegree,
    .help = "Expert-parallel degree for tokens in NxD Inference's hybrid sharding, which stores experts twice",
    .of_source = true,
    .source_help = "Expert-parallel degree for tokens (default: from neuron_config.json or the shapes)"};
inline constexpr LayoutOption kDraftDegree{
    .name = "draft-tp",
    .type = LayoutOption::Type::kDegree,
    .help = "TP degree of the draft, if it was compiled with fewer ranks: for its embedding and head",
    .of_source = true,
    .source_help =
        "TP degree of the draft, if it was compiled with fewer ranks (default: from neuron_config.json or the "
        "shapes)",
    .role = kModels[1]};
inline constexpr LayoutOption kEagleInputNorm{
    .name = "eagle-input-norm",
    .type = LayoutOption::Type::kFlag,
    .help = "Store the first norm of an EAGLE draft (enable_eagle_draft_input_norm)",
    .role = kModels[1]};
inline constexpr LayoutOption kShardOnIntermediate{
    "shard-on-intermediate", LayoutOption::Type::kFlag,
    "Pad experts for NxD Inference's use_shard_on_intermediate_dynamic_while"};
inline constexpr LayoutOption kPaddedHidden{
    .name = "padded-hidden-size",
    .type = LayoutOption::Type::kCount,
    .help = "Pad the hidden size with zeros, for NxD Inference's padded_hidden_size",
    .of_source = true,
    .source_help = "Padded hidden size (default: from neuron_config.json)"};
inline constexpr LayoutOption kPaddedIntermediate{
    .name = "padded-intermediate-size",
    .type = LayoutOption::Type::kCount,
    .help = "Pad the intermediate size with zeros, for NxD Inference's padded_intermediate_size",
    .of_source = true,
    .source_help = "Padded intermediate size (default: from neuron_config.json)"};
inline constexpr LayoutOption kHeadMultiple{
    .name = "lm-head-multiple",
    .type = LayoutOption::Type::kCount,
    .help =
        "Pad the output head to a multiple of N, with a bias that rules out the padding, for NxD Inference's "
        "lm_head_pad: N is TP x lm_head_pad_alignment_size x logical_nc_config",
    .of_source = true,
    .source_help = "Multiple that the output head is padded to (default: from neuron_config.json or the shapes)"};
inline constexpr LayoutOption kSplitHeadBias{
    .name = "split-lm-head-bias",
    .type = LayoutOption::Type::kFlag,
    .help = "Split the bias of lm-head-multiple over the ranks, for NxD Inference's on_device_sampling_config",
    .of_source = true,
    .source_help =
        "The bias of the output head is split over the ranks (default: from neuron_config.json or the shapes)"};
inline constexpr LayoutOption kDeclaredDtypes{
    "declared-dtypes", LayoutOption::Type::kFlag,
    "Store norms, router and output head in float32, for NxD Inference's cast_type as-declared"};
inline constexpr LayoutOption kSkipGamma{
    "skip-gamma", LayoutOption::Type::kFlag,
    "Multiply the weights of the kernels mlp and qkv by those of a norm, for NxD Inference's fused_rmsnorm_skip_gamma"};
inline constexpr LayoutOption kMxfp4Compute{
    "mxfp4-compute", LayoutOption::Type::kFlag,
    "Keep experts in MXFP4, in the order of NxD Inference's is_mxfp4_compute, and shuffle what surrounds them"};
inline constexpr LayoutOption kShuffleModel{
    "full-model-shuffled", LayoutOption::Type::kFlag,
    "With mxfp4-compute: shuffle the hidden dim of the whole model, for NxD Inference's is_full_model_shuffled"};
inline constexpr LayoutOption kHiddenActBias{
    "hidden-act-bias", LayoutOption::Type::kFlag,
    "With mxfp4-compute: add 1 to the biases of the up projections, for NxD Inference's hidden_act_bias"};
inline constexpr LayoutOption kFusedMoe{
    "moe-fused-nki", LayoutOption::Type::kFlag,
    "Store the router a second time, transposed, for NxD Inference's moe_fused_nki_kernel_enabled"};

}  // namespace reshard
