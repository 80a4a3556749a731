// Checkpoints that NxD Inference loads (save_sharded_checkpoint): the files of shard_checkpoint with NxD Inference's
// own names, replicated and padded heads, and tensors with each rank's number.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>
#include <unordered_map>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/core/attention_report.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/inference/inference_kernels.h"
#include "reshard/layouts/inference/inference_server.h"
#include "reshard/layouts/inference/medusa_heads.h"
#include "reshard/layouts/inference/nxdi_quantization.h"
#include "reshard/layouts/inference/nxdi_reading.h"
#include "reshard/layouts/inference/nxdi_rules.h"
#include "reshard/layouts/inference/nxdi_settings.h"
#include "reshard/layouts/inference/nxdi_shares.h"
#include "reshard/layouts/inference/served_adapters.h"
#include "reshard/layouts/ranks/sharded_map.h"
#include "reshard/layouts/rules/packing.h"
#include "reshard/layouts/training/trainer.h"
#include "reshard/tensor/recipes/scaled.h"

namespace reshard {
namespace {

constexpr Format kNxdiFormats[] = {Format::kSafetensors};
std::string always_pads(const TargetPlan&, const Model&) {
  return "layout nxdi always pads";
}

constexpr LayoutOption kOwnPad{
    .name = kPad.name, .type = LayoutOption::Type::kFlag, .help = kPad.help, .why_idle = always_pads};
constexpr LayoutOption kOwnPadHeads{
    .name = kPadHeads.name, .type = LayoutOption::Type::kFlag, .help = kPadHeads.help, .why_idle = always_pads};

std::vector<const LayoutOption*> nxdi_options() {
  std::vector<const LayoutOption*> options = {&kStartRank, &kEndRank};
  for (const NxdiSetting& setting : nxdi_settings()) options.push_back(setting.option);
  options.insert(options.end(), {&kKernels, &kQuantization, &kDraftDegree, &kLoraConfig, &kMedusaCount, &kFusedModel,
                                 &kOwnPad, &kOwnPadHeads});
  return options;
}

constexpr StoredQuantization kStoredQuantizations[] = {{"mxfp4", &kMxfp4Compute}};

LayoutTraits nxdi_traits() {
  LayoutTraits traits{"nxdi", "nxdi", "NxD Inference", kServedFolder, kNxdiFormats};
  traits.axes = {MeshAxis::kTensor};
  traits.casts_to_config_dtype = true;
  traits.stores = kStoredQuantizations;
  return traits;
}

/// Validates that the model has a tensor for each setting that adds a tensor of its own.
void validate_held(const OptionValues& values, const Model& model, const std::vector<PartitionRule>& rules) {
  if (!values.flag(kEagleInputNorm.name)) return;
  std::set<std::string> lacking = names_with(model, values, kEagleInputNorm);
  for (const PartitionRule& rule : rules) lacking.erase(with_stars(rule.stored_name));
  if (lacking.empty()) return;
  throw Error(ErrorKind::kBadInput, "is missing, but the draft was compiled with enable_eagle_draft_input_norm")
      .tensor(*lacking.begin())
      .hint("give the draft that the model was compiled with");
}

/// Validates combinations of settings that NxD Inference does not have, or whose weights are unknown.
void validate_settings(const OptionValues& values, const Model& model, std::uint32_t tp) {
  const auto given = [&](const LayoutOption& option) { return values.has(option.name); };
  const bool is_hybrid = given(kPromptExpertDegree) || given(kTokenExpertDegree);
  if (is_hybrid && !(given(kPromptExpertDegree) && given(kTokenExpertDegree)))
    fail_degree(fmt::format("only one of `{}` and `{}` is set", kPromptExpertDegree.name, kTokenExpertDegree.name),
                "set both: hybrid sharding stores the experts for prompts and for tokens");
  if (is_hybrid && degree_in(values, kMoeExpertDegree) > 1)
    fail_degree(fmt::format("`{}` does not apply to hybrid sharding", kMoeExpertDegree.name),
                fmt::format("leave out `{}`", kMoeExpertDegree.name));
  if (given(kShardOnIntermediate) && (is_hybrid || given(kFusedMoe)))
    throw Error(ErrorKind::kUnsupported, fmt::format("`{}` together with `{}` or hybrid sharding is not supported",
                                                     kShardOnIntermediate.name, kFusedMoe.name))
        .hint("let NxD Inference shard these weights (save_sharded_checkpoint)");
  if (values.flag(kSkipGamma.name) &&
      (degree_in(values, kContextDegree) > 1 || degree_in(values, kMlpContextDegree) > 1 ||
       degree_in(values, kAttentionDataDegree) > 1))
    throw Error(ErrorKind::kUnsupported,
                fmt::format("`{}` together with two sets of matrices is not supported", kSkipGamma.name))
        .hint("let NxD Inference shard these weights (save_sharded_checkpoint)");
  const std::uint32_t groups = degree_in(values, kMoeExpertDegree);
  if (groups > 1 && given(kMoeTensorDegree) && degree_in(values, kMoeTensorDegree) * groups != tp)
    fail_degree(fmt::format("`{}` {} times `{}` {} is not `tp` {}", kMoeTensorDegree.name,
                            degree_in(values, kMoeTensorDegree), kMoeExpertDegree.name, groups, tp),
                fmt::format("leave out `{}`", kMoeTensorDegree.name));
  const bool has_both = degree_in(values, kContextDegree) > 1 && degree_in(values, kAttentionDataDegree) > 1;
  for (const auto& [option, what] :
       {std::pair(&kPaddedHidden, "a padded hidden size"),
        std::pair(&kPaddedIntermediate, "a padded intermediate size"),
        std::pair(&kPromptExpertDegree, "hybrid sharding"), std::pair(&kDeclaredDtypes, "cast_type as-declared"),
        std::pair(&kMxfp4Compute, "is_mxfp4_compute")})
    if (given(*option) && !has_effect(model, values, *option))
      throw Error(ErrorKind::kUnsupported,
                  fmt::format("NxD Inference's form of {} with {} is unknown", model.family->model_type, what))
          .hint(fmt::format("leave out `{}`", option->name));
  for (const LayoutOption* option : {&kContextDegree, &kAttentionDataDegree})
    if (!has_both && degree_in(values, *option) > 1 && !has_effect(model, values, *option))
      throw Error(ErrorKind::kUnsupported,
                  fmt::format("NxD Inference's second set of matrices for {} is unknown", model.family->model_type))
          .hint(fmt::format("leave out `{}`", option->name));
}

/// Validates that NxD Inference can load the model in this form.
void validate_loadable(const Model& model, const OptionValues& form, std::uint32_t tp, const HoldsName& holds) {
  const Scheme scheme = nxdi_scheme(model, form);
  for (const ModelParameter& parameter : model.parameters) {
    const std::string pattern = with_stars(parameter.name);
    const auto value_of = [&](const std::string& key) -> ConfigValue {
      if (key == "tp_degree") return std::uint64_t{tp};
      if (key == "rows") return parameter.shape.front();
      if (key == "columns") return parameter.shape.back();
      if (key == "is_tied") return !parameter.tied_to.empty();
      return setting_in(form, key, model);
    };
    const auto defined = [&](const std::string& key) {
      const auto definition = scheme.definitions.find(key);
      return definition == scheme.definitions.end() ? value_of(key) : definition->second.value(value_of);
    };
    for (const Scheme::Refusal& refusal : scheme.refusals) {
      if (!names_match(refusal.parameter, pattern) || parameter.shape.empty()) continue;
      if (parameter.tied_to.empty() && !holds(parameter.name)) continue;
      if (refusal.when && !refusal.when.holds(defined)) continue;
      throw Error(ErrorKind::kUnsupported,
                  fmt::format("NxD Inference cannot load {} models with {}", model.family->model_type, refusal.reason))
          .tensor(parameter.name)
          .hint(refusal.hint.empty() ? "it refuses such a model or fails; choose other ranks, options or weights"
                                     : refusal.hint);
    }
  }
}

/// Returns the value of kQuantization for the weights.
/// \throws Error kBadInput if `values` have another.
std::string settle_quantization(const Model& model, std::span<const LogicalTensor> tensors,
                                const OptionValues& values) {
  QuantizationEvidence evidence;
  for (const LogicalTensor& tensor : tensors) evidence.add(tensor.name, tensor.dtype, tensor.shape);
  validate_quantized_weights(model, evidence);
  std::string own = quantization_of(model, evidence);
  if (!values.has(kQuantization.name)) return own;
  std::string wanted = values.text(kQuantization);
  if (const std::string misfit = quantization_misfit(model, own, wanted); !misfit.empty())
    throw Error(ErrorKind::kBadInput, misfit)
        .hint(
            "give the weights that the model was compiled for: if it is quantised, the directory of its "
            "quantized_checkpoints_path (NxD Inference's save_quantized_state_dict writes it), with `config` for the "
            "model's config.json; otherwise the model itself");
  return wanted;
}

/// Replaces parameters that NxD Inference multiplies by the weights of a norm with the products, in `rules` and in
/// `tensors`.
void multiply_by_norms(TargetPlan& plan, const Model& model, const OptionValues& form,
                       std::vector<PartitionRule>& rules, std::vector<LogicalTensor>& tensors) {
  const Kernels kernels = kernels_of(form).value_or(Kernels{});
  std::unordered_map<std::string, std::string> products;
  for (const Scheme::Altered& altered : nxdi_scheme(model, form).factors)
    for (LogicalTensor& tensor : tensors)
      for (const std::string& parameter : altered.parameters) {
        if (kernels.count(altered.kernel) == 0 || !names_match(parameter, with_stars(tensor.name))) continue;
        const std::string layer = tensor.name.substr(0, tensor.name.size() - (parameter.size() - 2));
        LogicalTensor product = tensor;
        product.name += " * " + altered.factor.substr(1);
        products.emplace(tensor.name, product.name);
        product.computed =
            std::make_shared<const Computed>(Computed{column_scaled_recipe(), {tensor.name, layer + altered.factor}});
        plan.derived.push_back(product);
        tensor.name = product.name;
        break;
      }
  for (PartitionRule& rule : rules)
    for (PartitionRule::Part& part : rule.parts)
      if (const auto product = products.find(part.logical_name); product != products.end()) {
        part.logical_name = product->second;
        rule.scaled = true;
      }
}

/// Sets the dtypes that NxD Inference's modules declare.
void declare_dtypes(const Model& model, const OptionValues& form, std::vector<LogicalTensor>& tensors) {
  for (const Scheme::Altered& altered : nxdi_scheme(model, form).float32)
    for (LogicalTensor& tensor : tensors)
      if (std::any_of(altered.parameters.begin(), altered.parameters.end(),
                      [&](const std::string& parameter) { return names_match(parameter, with_stars(tensor.name)); }))
        tensor.dtype = DType::kF32;
}

/// Plans a model of any role but those of Medusa's heads and of adapters.
void plan_model(TargetPlan& plan, const RankTarget& target, const OptionValues& values, const TargetContext& context) {
  const Model& model = *context.model;
  const std::uint32_t tp = plan.mesh.tp;
  const HoldsName holds = names_in(context.logical);
  const auto leave_out_if = [&](const char* why, const std::function<bool(const ModelParameter&)>& is_left_out) {
    std::vector<std::string> names;
    for (const ModelParameter& parameter : model.parameters)
      if (holds(parameter.name) && is_left_out(parameter)) names.push_back(parameter.name);
    if (!names.empty()) plan.notes.left_out(fmt::format("left out, because {}: {}", why, list_names(names))).of(names);
    plan.without_place.insert(plan.without_place.end(), names.begin(), names.end());
  };
  leave_out_if("NxD Inference computes them", [&](const ModelParameter& parameter) {
    return parameter.shape_known == ShapeKnown::kNot && !(parameter.trained && model.is_part);
  });
  leave_out_if("NxD Inference has the files of other parts elsewhere", [&](const ModelParameter& parameter) {
    return parameter.shape_known == ShapeKnown::kNot && parameter.trained && model.is_part;
  });
  leave_out_if("NxD Inference has no layers for multi-token prediction", [&](const ModelParameter& parameter) {
    return parameter.layer && *parameter.layer >= served_layers(model);
  });
  validate_settings(values, model, tp);
  validate_loadable(model, values, tp, holds);
  leave_out_if("the files have no place for them",
               [unstored = unstored_parameters(model, values)](const ModelParameter& parameter) {
                 return unstored.count(with_stars(parameter.name)) > 0;
               });
  std::vector<PartitionRule> rules = nxdi_rules(model, tp, values, holds, float_dtype(context.logical));
  validate_held(values, model, rules);
  note_rounded(rounded_in(rules), plan.notes);
  const Kernels kernels = kernels_of(values).value_or(Kernels{});
  for (const std::string& kernel : idle_kernels(rules)) plan.idle.insert(kernel);
  if (kernels.count("qkv") && plan.idle.count("qkv") && values.flag(kFuseQkv.name))
    throw Error(ErrorKind::kUsage,
                fmt::format("`{}` qkv: the fused projection of every layer is quantised", kKernels.name))
        .hint("NxD Inference needs the attention of each layer in modules_to_not_convert for this kernel");
  if (kernels.count("qkv") && plan.idle.count("qkv"))
    throw Error(ErrorKind::kUsage, fmt::format("`{}` qkv applies only to the fused projection", kKernels.name))
        .hint(fmt::format("add `{}`, or leave out qkv: NxD Inference stores the others unchanged", kFuseQkv.name));
  transpose_rules(rules, kernels);
  plan.form = values;  // without options of other roles
  plan.form.set(kQuantization.name, settle_quantization(model, context.logical, values));
  for (const NxdiSetting& setting : nxdi_settings())
    if (!has_effect(model, values, *setting.option)) plan.idle.insert(setting.option->name);
  std::vector<std::string> idle = values.names();
  idle.insert(idle.end(), kernels.begin(), kernels.end());
  std::erase_if(idle, [&](const std::string& name) { return plan.idle.count(name) == 0; });
  if (!idle.empty())
    plan.notes.no_effect(fmt::format("without effect on the files of this {}{} model: {}",
                                     model.quantized ? "quantised " : "", model.family->model_type, list_names(idle)));
  const Scheme& scheme = inference_scheme();
  if (const auto served = served_adapters(values)) wrap_rules(rules, *served, scheme.wrapper);
  if (const auto prefix = scheme.models.find(plan.role); prefix != scheme.models.end())
    for (PartitionRule& rule : rules) rule.stored_name.insert(0, prefix->second);
  std::vector<LogicalTensor> tensors(context.logical.begin(), context.logical.end());
  if (values.flag(kDeclaredDtypes.name)) declare_dtypes(model, values, tensors);
  if (values.flag(kSkipGamma.name)) multiply_by_norms(plan, model, values, rules, tensors);
  plan.map = sharded_target_map(rules, tp, tensors, target);
  if (model.heads != 0) plan.attention = inference_report(model, tp, values.flag(kFuseQkv.name));
}

void plan_nxdi(TargetPlan& plan, const RankTarget& target, const OptionValues& given, const TargetContext& context) {
  OptionValues values = given;
  if (plan.role.empty() && values.has(kDraftDegree.name))
    throw Error(ErrorKind::kUsage, fmt::format("`{}` applies only to a draft", kDraftDegree.name))
        .hint("leave it out, or set `draft` to the directory of the draft");
  if (plan.role != kModels[1]) values.erase(kDraftDegree.name);
  erase_usual_degree(values, plan.mesh.tp);
  if (plan.role == kModels[0]) values.erase(kEagleInputNorm.name);
  const bool with_adapters = plan.role == kAdapterRoles[0] || plan.role == kAdapterRoles[1];
  const auto served = served_adapters(values);
  if (served.has_value() != with_adapters)
    throw Error(ErrorKind::kUsage,
                with_adapters
                    ? fmt::format("`adapter` needs `{}`: the form of the files depends on it", kLoraConfig.name)
                    : fmt::format("`{}` needs `adapter`: the files contain the adapters", kLoraConfig.name))
        .hint(with_adapters ? "set `for` to the directory of the compiled model, whose neuron_config.json has it"
                            : "set `adapter` to the directory of each adapter");
  plan.form = values;
  if (plan.role == kMedusaRoles[1])
    return plan_medusa_heads(plan, target, values, context, inference_scheme().left_out.back());
  values.erase(kMedusaCount.name);
  if (plan.role == kAdapterRoles[1])
    return plan_served_adapters(
        plan, target, *served,
        nxdi_rules(
            *context.model, plan.mesh.tp, values, [](const auto&) { return false; }, float_dtype(context.logical)),
        context);
  plan_model(plan, target, values, context);
}

}  // namespace

const Layout& nxdi_layout() {
  static const ServedLayout kLayout(
      {.traits = nxdi_traits(),
       .options = nxdi_options(),
       .ranks = served_ranks(
           explain_nxdi, [](const ShardedCheckpoint& shards) { return is_nxdi(shards.files.front().front().tensors); },
           false),
       .loaded_by = "NxD Inference loads these files for a model that is compiled with save_sharded_checkpoint=True",
       .validate_model = validate_named,
       .plan_ranks = plan_nxdi,
       .joined_roles = {{kModels[1], kModels[0]},
                        {kAdapterRoles[1], kAdapterRoles[0]},
                        {kMedusaRoles[1], kMedusaRoles[0]}},
       .compiled_model = read_compiled_model,
       .validate_compiled = validate_compiled_form});
  return kLayout;
}

}  // namespace reshard
