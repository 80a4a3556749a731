// Checkpoints that NxD Inference loads (save_sharded_checkpoint): the files of shard_checkpoint with NxD Inference's
// own names, replicated and padded heads, and tensors with each rank's number.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/core/attention_report.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/inference/inference_kernels.h"
#include "reshard/layouts/inference/inference_server.h"
#include "reshard/layouts/inference/medusa_heads.h"
#include "reshard/layouts/inference/nxdi_quantization.h"
#include "reshard/layouts/inference/nxdi_settings.h"
#include "reshard/layouts/inference/nxdi_shares.h"
#include "reshard/layouts/inference/served_adapters.h"
#include "reshard/layouts/map/rank_rules.h"
#include "reshard/layouts/ranks/sharded_map.h"
#include "reshard/layouts/training/trainer.h"
#include "reshard/specs/model/language_model.h"
#include "reshard/specs/model/quantization.h"
#include "reshard/specs/parallel/head_slots.h"
#include "reshard/specs/stages/stage_plan.h"
#include "reshard/tensor/recipes/scaled.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;
constexpr Format kNxdiFormats[] = {Format::kSafetensors};
std::string always_pads(const TargetPlan&, const Model&) {
  return "layout nxdi always pads";
}

constexpr LayoutOption kOwnPad{
    .name = kPad.name, .type = LayoutOption::Type::kFlag, .help = kPad.help, .why_idle = always_pads};
constexpr LayoutOption kOwnPadHeads{
    .name = kPadHeads.name, .type = LayoutOption::Type::kFlag, .help = kPadHeads.help, .why_idle = always_pads};

constexpr LayoutOption kFusedModel{.name = "fused-model",
                                   .type = LayoutOption::Type::kChoice,
                                   .help = "",
                                   .choices = kModels,
                                   .default_value = "target",
                                   .of_source = true,
                                   .source_help = "Which of the models of a fused speculation to read",
                                   .only_of_source = true};

std::vector<const LayoutOption*> nxdi_options() {
  std::vector<const LayoutOption*> options = {&kStartRank, &kEndRank};
  for (const NxdiSetting& setting : nxdi_settings()) options.push_back(setting.option);
  options.insert(options.end(), {&kKernels, &kQuantization, &kDraftDegree, &kLoraConfig, &kMedusaCount, &kFusedModel,
                                 &kOwnPad, &kOwnPadHeads});
  return options;
}

LayoutTraits nxdi_traits() {
  LayoutTraits traits{"nxdi", "nxdi", "NxD Inference", kServedFolder, kNxdiFormats};
  traits.axes = {MeshAxis::kTensor};
  traits.casts_to_config_dtype = true;
  return traits;
}

/// Returns the built-in families that declare NxD Inference's names.
std::vector<std::string> inference_families() {
  std::vector<std::string> names = known_model_types();
  std::erase_if(names, [](const std::string& name) { return !builtin_family(name)->inference; });
  return names;
}

/// Returns the prefix of the names of a model that is the language model of a larger one; otherwise empty.
std::string prefix_of(const Model& model) {
  return model.renamed && model.family->inference ? model.family->inference->prefix : std::string();
}

bool has_known_prefix(const Model& model) {
  const std::string& prefix = model.family->inference->prefix;
  return !prefix.empty() && (!model.renamed || model.family->layers.starts_with(prefix));
}

/// Validates that NxD Inference's names for the model are known.
void validate_named(const Model& model) {
  if (!model.family->inference)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("NxD Inference's names for {} are unknown", model.family->model_type))
        .hint(fmt::format("supported are {}; describe others with `spec` and \"nxd_inference\" in it, or choose a "
                          "layout that keeps the checkpoint's names",
                          fmt::join(inference_families(), ", ")));
  if ((model.is_part || model.renamed) && !has_known_prefix(model))
    throw Error(ErrorKind::kUnsupported,
                "NxD Inference's names for models of several parts, with another prefix or head, "
                "are unknown")
        .hint(
            "to read the rank files of the text model, set `config` to a config.json with the contents of "
            "text_config; to write, choose a layout that keeps the checkpoint's names");
  const auto built_in = prefix_of(model).empty() ? nullptr : builtin_family(model.family->model_type);
  if (!prefix_of(model).empty() && (built_in == nullptr || built_in->json_text != model.family->json_text))
    throw Error(ErrorKind::kUnsupported, "a description with `spec` does not apply to the names of a larger model")
        .hint("leave out `spec`, or give the language model alone");
  if (model.quantized && model.quant_method != inference_scheme().program)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("layout nxdi has no place for the scales of linears that are quantised by {}",
                            printable(model.quant_method)))
        .hint(fmt::format("{}, or choose an inference layout that keeps the checkpoint's names",
                          is_dequantized(model.quant_method) ? "set `dtype` to bfloat16, which dequantises the model"
                                                             : "dequantise the model first"));
}

Scheme scheme_of(const Model& model, const OptionValues& form) {
  const auto own = prefix_of(model).empty() ? nullptr : builtin_family(model.family->model_type);
  Scheme scheme = inference_scheme(own ? *own : *model.family,
                                   [&](const std::string& key) { return setting_in(form, key, model); });
  if (!model.quantization_marker.empty()) add_scale_entries(scheme, model.quantization_marker);
  return scheme;
}

/// Returns the entries of a scheme, with stars for numbers.
std::set<std::string> entry_names(const Scheme& scheme) {
  std::set<std::string> names;
  const auto add = [&](const Scheme::Entry& entry) {
    names.insert(entry.names.front());
    for (const Scheme::Constant& constant : entry.constants) names.insert(constant.names.front());
  };
  for (const Scheme::Entry& entry : scheme.entries) {
    add(entry);
    for (const Scheme::Entry& copy : entry.copies) add(copy);
  }
  return names;
}

/// Returns the parameters that files with this form lack, with stars for numbers.
std::set<std::string> unstored_parameters(const Model& model, const OptionValues& form) {
  std::set<std::string> parameters;
  for (const Scheme::Entry& entry : scheme_of(model, form).entries)
    if (entry.names.front().empty()) parameters.insert(entry.parameters.begin(), entry.parameters.end());
  return parameters;
}

/// Returns `form` with a setting turned on.
OptionValues with_setting(OptionValues form, const LayoutOption& option, std::uint64_t degree) {
  if (option.type == LayoutOption::Type::kFlag)
    form.set_flag(option.name, true);
  else
    form.set_number(option.name, degree);
  return form;
}

/// Returns the degree to try a setting with: its own, or 2.
std::uint64_t tried_degree(const OptionValues& form, const LayoutOption& option) {
  return option.type == LayoutOption::Type::kFlag ? 0 : std::max(degree_in(form, option), 2u);
}

/// Returns the names of entries that checkpoints have only with this setting.
std::set<std::string> names_with(const Model& model, const OptionValues& form, const LayoutOption& option) {
  OptionValues off = form;
  off.erase(option.name);
  std::set<std::string> names = entry_names(scheme_of(model, with_setting(off, option, tried_degree(form, option))));
  for (const std::string& name : entry_names(scheme_of(model, off))) names.erase(name);
  return names;
}

constexpr const char* kPaddedExperts = "experts_of_256";  // in Scheme::Entry::share

/// Whether files differ with a setting.
bool has_effect(const Model& model, const OptionValues& form, const LayoutOption& option) {
  OptionValues off = form;
  off.erase(option.name);
  const auto forms = [&](const OptionValues& of) {
    using Values = std::set<std::pair<std::string, Scheme::Constant::Value>>;
    std::multiset<std::tuple<std::string, std::optional<std::uint32_t>, std::uint64_t, Values>> all;
    for (const Scheme::Entry& entry : scheme_of(model, of).entries) {
      Values values;
      for (const Scheme::Constant& constant : entry.constants) values.emplace(constant.names.front(), constant.value);
      all.emplace(entry.names.front(), entry.split, entry.multiple, std::move(values));
    }
    return all;
  };
  for (const auto& [key, setting] : model.family->inference->padded_sizes)
    if (nxdi_option(setting) == &option) return true;
  if (&option == &kSkipGamma) {
    const std::vector<Scheme::Altered> factors = scheme_of(model, form).factors;
    const Kernels kernels = kernels_of(form).value_or(Kernels{});
    return std::any_of(factors.begin(), factors.end(),
                       [&](const Scheme::Altered& factor) { return kernels.count(factor.kernel) > 0; });
  }
  if (&option == &kDeclaredDtypes) return !scheme_of(model, form).float32.empty();
  const bool is_padding =
      &option == &kShardOnIntermediate ||
      (&option == &kMoeTensorDegree && form.flag(kShardOnIntermediate.name) && degree_in(form, kMoeExpertDegree) == 1);
  if (!is_padding)
    return !names_with(model, form, option).empty() ||
           forms(off) != forms(with_setting(off, option, tried_degree(form, option)));
  const Scheme scheme = scheme_of(model, form);
  return std::any_of(scheme.entries.begin(), scheme.entries.end(),
                     [](const Scheme::Entry& entry) { return entry.share == kPaddedExperts; });
}

/// Returns the number of layers that NxD Inference has: none for multi-token prediction, which follow the others.
std::uint64_t served_layers(const Model& model) {
  const Json* own = model.config == nullptr ? nullptr : find_key(*model.config, "num_hidden_layers");
  return own != nullptr && own->is_number_unsigned() ? std::min(model.layers, own->get<std::uint64_t>()) : model.layers;
}

WrittenNames written_names(const Model& model, const OptionValues& form) {
  return {model, std::make_shared<const Scheme>(scheme_of(model, form)), 0};
}

/// Returns the rules of a model's tensors, without transposed ones. `dtype` is that of floating tensors.
std::vector<PartitionRule> nxdi_rules(const Model& model, std::uint32_t tp, const OptionValues& form,
                                      const HoldsName& holds, DType dtype) {
  validate_named(model);
  Model served = model;
  const std::string prefix = prefix_of(model);
  if (!prefix.empty()) {
    served.family = builtin_family(model.family->model_type);
    for (ModelParameter& parameter : served.parameters)
      for (std::string* name : {&parameter.name, &parameter.module, &parameter.tied_to})
        if (name->starts_with(prefix)) name->erase(0, prefix.size());
  }
  std::erase_if(served.parameters, [layers = served_layers(model)](const ModelParameter& parameter) {
    return parameter.layer.value_or(0) >= std::max<std::uint64_t>(layers, 1);
  });
  const WrittenNames names = written_names(served, form);
  RankShares shares = nxdi_shares(served, form, tp, head_counts(served, names));
  shares.dtype = dtype;
  const HoldsName holds_own = [&](const std::string& name) { return holds(name) || holds(prefix + name); };
  std::vector<PartitionRule> rules = RankRules(served, names, shares, tp).run(prefix.empty() ? holds : holds_own);
  validate_quantized_rules(served, rules);
  set_quantized_kernels(rules, served, kernels_of(form).value_or(Kernels{}));
  for (PartitionRule& rule : rules)
    for (PartitionRule::Part& part : rule.parts) {
      if (prefix.empty()) continue;
      part.logical_name = prefix + part.logical_name;
      if (part.changed)
        part.changed = std::make_shared<const PartitionRule::Changed>(
            PartitionRule::Changed{prefix + part.changed->parameter, part.changed->change});
    }
  return rules;
}

/// Returns the dtype of the first floating tensor that is not quantised.
template <typename Tensors>
DType float_dtype(const Tensors& tensors) {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [](const auto& tensor) {
    return describe(tensor.dtype).kind == DTypeClass::kFloat && bits(tensor.dtype) >= 16;
  });
  return found == tensors.end() ? DType::kBF16 : found->dtype;
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
        std::pair(&kPromptExpertDegree, "hybrid sharding"), std::pair(&kDeclaredDtypes, "cast_type as-declared")})
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
  const Scheme scheme = scheme_of(model, form);
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
  const std::string own = quantization_of(model, evidence);
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
  for (const Scheme::Altered& altered : scheme_of(model, form).factors)
    for (LogicalTensor& tensor : tensors)
      for (const std::string& parameter : altered.parameters) {
        if (kernels.count(altered.kernel) == 0 || !names_match(parameter, with_stars(tensor.name))) continue;
        const std::string layer = tensor.name.substr(0, tensor.name.size() - (parameter.size() - 2));
        LogicalTensor product = tensor;
        product.name += ".scaled";
        products.emplace(tensor.name, product.name);
        product.computed =
            std::make_shared<const Computed>(Computed{column_scaled_recipe(), {tensor.name, layer + altered.factor}});
        plan.computed.push_back(product);
        tensor.name = product.name;
        break;
      }
  for (PartitionRule& rule : rules)
    for (PartitionRule::Part& part : rule.parts)
      if (const auto product = products.find(part.logical_name); product != products.end())
        part.logical_name = product->second;
}

/// Sets the dtypes that NxD Inference's modules declare.
void declare_dtypes(const Model& model, const OptionValues& form, std::vector<LogicalTensor>& tensors) {
  for (const Scheme::Altered& altered : scheme_of(model, form).float32)
    for (LogicalTensor& tensor : tensors)
      if (std::any_of(altered.parameters.begin(), altered.parameters.end(),
                      [&](const std::string& parameter) { return names_match(parameter, with_stars(tensor.name)); }))
        tensor.dtype = DType::kF32;
}

void plan_nxdi(TargetPlan& plan, const RankTarget& target, const OptionValues& given, const TargetContext& context) {
  const Model& model = *context.model;
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
                            : "set `adapter` to the directory of each adapter, in the order of lora_ckpt_paths");
  plan.form = values;
  if (plan.role == kMedusaRoles[1])
    return plan_medusa_heads(plan, target, values, context, inference_scheme().left_out.back());
  values.erase(kMedusaCount.name);
  if (plan.role == kAdapterRoles[1])
    return plan_served_adapters(
        plan, target, *served,
        nxdi_rules(
            model, plan.mesh.tp, values, [](const auto&) { return false; }, float_dtype(context.logical)),
        context);
  const std::uint32_t tp = plan.mesh.tp;
  const HoldsName holds = names_in(context.logical);
  std::vector<std::string> computed, parts;
  for (const ModelParameter& parameter : model.parameters)
    if (parameter.any_shape && holds(parameter.name))
      (parameter.trained && model.is_part ? parts : computed).push_back(parameter.name);
  if (!computed.empty()) plan.notes.push_back("left out, because NxD Inference computes them: " + list_names(computed));
  if (!parts.empty())
    plan.notes.push_back("left out, because NxD Inference has the files of other parts elsewhere: " +
                         list_names(parts));
  plan.without_place.insert(plan.without_place.end(), computed.begin(), computed.end());
  plan.without_place.insert(plan.without_place.end(), parts.begin(), parts.end());
  std::vector<std::string> beyond;
  for (const ModelParameter& parameter : model.parameters)
    if (parameter.layer && *parameter.layer >= served_layers(model) && holds(parameter.name))
      beyond.push_back(parameter.name);
  if (!beyond.empty())
    plan.notes.push_back("left out, because NxD Inference has no layers for multi-token prediction: " +
                         list_names(beyond));
  plan.without_place.insert(plan.without_place.end(), beyond.begin(), beyond.end());
  validate_settings(values, model, tp);
  validate_loadable(model, values, tp, holds);
  std::vector<std::string> unstored;
  const std::set<std::string> without_entry = unstored_parameters(model, values);
  for (const ModelParameter& parameter : model.parameters)
    if (holds(parameter.name) && without_entry.count(with_stars(parameter.name)) > 0)
      unstored.push_back(parameter.name);
  if (!unstored.empty())
    plan.notes.push_back("left out, because the files have no place for them: " + list_names(unstored));
  plan.without_place.insert(plan.without_place.end(), unstored.begin(), unstored.end());
  std::vector<PartitionRule> rules = nxdi_rules(model, tp, values, holds, float_dtype(context.logical));
  validate_held(values, model, rules);
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
    plan.notes.push_back(fmt::format("without effect on the files of this {}{} model: {}",
                                     model.quantized ? "quantised " : "", model.family->model_type, list_names(idle)));
  const Scheme& scheme = inference_scheme();
  if (served) wrap_rules(rules, *served, scheme.wrapper);
  if (const auto prefix = scheme.models.find(plan.role); prefix != scheme.models.end())
    for (PartitionRule& rule : rules) rule.stored_name.insert(0, prefix->second);
  std::vector<LogicalTensor> tensors(context.logical.begin(), context.logical.end());
  if (values.flag(kDeclaredDtypes.name)) declare_dtypes(model, values, tensors);
  if (values.flag(kSkipGamma.name)) multiply_by_norms(plan, model, values, rules, tensors);
  plan.map = sharded_target_map(rules, tp, tensors, target);
  if (model.heads != 0) plan.attention = inference_report(model, tp, values.flag(kFuseQkv.name));
}

/// Returns `given`, or else the form that neuron_config.json declares for the model with this role. The file is in the
/// weights' directory or its parent; for optimum-neuron, it is next to config.json, two levels up.
OptionValues declared_options(Files& files, const Checkpoint& checkpoint, const std::string& role, bool has_record,
                              OptionValues given) {
  const fs::path above = directory_above(files, checkpoint.path);
  for (const fs::path& directory : {checkpoint.path, above, checkpoint.directory})
    if (const auto compiled = read_compiled_model(files, directory)) {
      const CompiledModel* model = role == kModels[0] ? &*compiled : joined_model(*compiled, role);
      if (model == nullptr) break;
      if (model->options.flag(kSkipGamma.name))
        throw Error(
            ErrorKind::kUnsupported,
            "has fused_rmsnorm_skip_gamma: the weights were multiplied by norm weights and rounded, which cannot "
            "be undone")
            .in(model->file)
            .hint("compile the model without fused_rmsnorm_skip_gamma, or use the model that it was compiled from");
      for (const auto& [name, value] : model->options.all()) {
        const bool is_recorded = has_record && name == kKernels.name;
        if (given.has(name) && given.all().at(name) != value && !is_recorded)
          throw Error(ErrorKind::kUsage, fmt::format("`from-{}` {} contradicts the compiled model, which has {}", name,
                                                     given.all().at(name), value))
              .in(model->file)
              .hint(fmt::format("leave out `from-{}`", name));
        if (!given.has(name)) given.set(name, value);
      }
      break;
    }
  return given;
}

/// Returns the rules of files that are read.
std::vector<PartitionRule> read_rules(const ShardedCheckpoint& shards, const Model& model, const OptionValues& form,
                                      const HoldsName& holds) {
  return nxdi_rules(model, shards.tp, form, holds, float_dtype(shards.files.front().front().tensors));
}

/// Whether the tensors of the first rank have the shapes that `form` results in.
bool fits_form(const ShardedCheckpoint& shards, const Model& model, const OptionValues& form, const HoldsName& holds) {
  std::unordered_map<std::string_view, const Dims*> shapes;
  for (const ModelParameter& parameter : model.parameters) shapes.emplace(parameter.name, &parameter.shape);
  std::unordered_map<std::string, const TensorEntry*> stored;
  for (const TensorEntry& tensor : shards.files.front().front().tensors) stored.emplace(tensor.name, &tensor);
  for (const PartitionRule& rule : read_rules(shards, model, form, holds)) {
    std::vector<Dims> parts;
    for (const PartitionRule::Part& part : rule.parts)
      parts.push_back(part.changed ? part.changed->change.shape_of(*shapes.at(part.changed->parameter))
                                   : *shapes.at(part.logical_name));
    const auto shape = stored_shape(rule, 0, parts);
    const auto tensor = stored.find(rule.stored_name);
    if (!shape || tensor == stored.end()) return false;
    if (num_elems(file_shape(rule, 0, *shape)) != num_elems(tensor->second->shape)) return false;
  }
  return true;
}

/// Sets the degrees from index `first` on that `degrees` lists without a value, so that the shapes fit.
bool find_degrees(const ShardedCheckpoint& shards, const Model& model, OptionValues& form, const HoldsName& holds,
                  std::span<const LayoutOption* const> degrees) {
  if (degrees.empty()) return fits_form(shards, model, form, holds);
  for (std::uint32_t degree = 2; degree <= shards.tp; ++degree) {
    if (shards.tp % degree != 0) continue;
    form.set_number(degrees.front()->name, degree);
    if (find_degrees(shards, model, form, holds, degrees.subspan(1))) return true;
  }
  return false;
}

/// Sets the padding of the head that the files show by its bias, which has an element for each row of the padded head
/// or, if ranks split it, of the rank's part. Several multiples result in the same files: sets the smallest.
void find_head_padding(const ShardedCheckpoint& shards, const Model& model, OptionValues& form) {
  if (form.has(kHeadMultiple.name)) return;
  std::unordered_map<std::string_view, std::uint64_t> rows;
  for (const TensorEntry& tensor : shards.files.front().front().tensors)
    if (!tensor.shape.empty()) rows.emplace(tensor.name, tensor.shape.front());
  constexpr std::uint64_t kProbe = 4093;  // a prime: hardly a vocabulary needs no padding
  const Scheme scheme = scheme_of(model, with_setting(form, kHeadMultiple, kProbe));
  for (const Scheme::Entry& entry : scheme.entries) {
    if (entry.multiple != kProbe || entry.constants.empty()) continue;
    const auto head = rows.find(entry.names.front()), bias = rows.find(entry.constants.front().names.front());
    const auto parameter = std::find_if(model.parameters.begin(), model.parameters.end(), [&](const auto& one) {
      return one.name == prefix_of(model) + entry.parameters.front();
    });
    if (head == rows.end() || bias == rows.end() || parameter == model.parameters.end()) continue;
    const std::uint64_t padded = head->second * shards.tp, padding = padded - parameter->shape.front();
    for (std::uint64_t multiple = padding + 1; multiple <= kMaxParallelDegree; ++multiple) {
      if (padded % multiple != 0) continue;
      form.set_number(kHeadMultiple.name, multiple);
      form.set_flag(kSplitHeadBias.name, shards.tp > 1 && bias->second == head->second);
      break;
    }
  }
}

/// Returns the form of the files: what their names show, with degrees that are declared, or else shown by the shapes.
OptionValues form_of(const ShardedCheckpoint& shards, const Model& model, const OptionValues& declared,
                     const HoldsName& holds) {
  std::set<std::string> held;
  for (const TensorEntry& tensor : shards.files.front().front().tensors) held.insert(with_stars(tensor.name));
  const auto is_held = [&](const OptionValues& form, const LayoutOption& option) {
    const std::set<std::string> own = names_with(model, form, option);
    return std::any_of(own.begin(), own.end(), [&](const std::string& name) { return held.count(name) > 0; });
  };
  std::vector<const LayoutOption*> options;
  for (const NxdiSetting& setting : nxdi_settings()) options.push_back(setting.option);
  std::stable_partition(options.begin(), options.end(),
                        [&](const LayoutOption* option) { return declared.has(option->name); });
  OptionValues form;
  if (declared.has(kKernels.name))
    form.set(kKernels.name, declared.text(kKernels));
  else if (has_quantized_mlp_kernel(shards.files.front().front().tensors))
    form.set(kKernels.name, std::string(kQuantizedMlpKernel));
  constexpr std::uint64_t kAnyDegree = 2;
  for (int round = 0; round < 2; ++round)  // the names of one setting may depend on another
    for (const LayoutOption* option : options)
      if (is_held(form, *option)) form = with_setting(form, *option, kAnyDegree);
  std::vector<const LayoutOption*> unknown;  // degrees
  for (const LayoutOption* option : options) {
    if (form.has(option->name) && !is_held(form, *option)) form.erase(option->name);
    const bool is_shown = form.has(option->name), is_declared = declared.has(option->name);
    const bool is_degree = option->type != LayoutOption::Type::kFlag;
    const bool has_no_names = !is_shown && names_with(model, form, *option).empty();
    if (is_declared && ((has_no_names && has_effect(model, form, *option)) || (is_shown && is_degree)))
      form.set(option->name, declared.all().at(option->name));
    else if (is_shown && is_degree)
      unknown.push_back(option);
  }
  if (declared.has(kDraftDegree.name)) form.set(kDraftDegree.name, declared.all().at(kDraftDegree.name));
  if (find_degrees(shards, model, form, holds, unknown)) return form;
  const bool may_have_own_degree =
      declared.choice(kFusedModel) != kFusedModel.default_value && !declared.has(kDraftDegree.name);
  for (std::uint32_t degree = shards.tp / 2; may_have_own_degree && degree > 0; --degree) {
    OptionValues own = form;
    own.set_number(kDraftDegree.name, degree);
    if (shards.tp % degree == 0 && find_degrees(shards, model, own, holds, unknown)) return own;
  }
  // Both degrees of attention result in the same names.
  for (const LayoutOption*& option : unknown)
    if (option == &kContextDegree) {
      form.erase(option->name);
      option = &kAttentionDataDegree;
    }
  find_degrees(shards, model, form, holds, unknown);  // if none fits, the error names a tensor
  return form;
}

/// Removes `wrapper` from the name of a tensor in a wrapped module.
std::string unwrapped(std::string name, const std::string& wrapper) {
  if (const auto at = name.find(wrapper + "."); at != std::string::npos) name.erase(at, wrapper.size());
  return name;
}

/// Returns the shapes that files record for one of their models.
OriginalShapes originals_of(const OriginalShapes& shapes, const std::string& chosen) {
  OriginalShapes own;
  for (const auto& [name, shape] : shapes) {
    const auto role = std::find_if(std::begin(kModels), std::end(kModels), [&, &name = name](const std::string& model) {
      return name.starts_with(model + ".");
    });
    if ((role == std::end(kModels) ? kModels[0] : *role) != chosen) continue;
    own.emplace(role == std::end(kModels) ? name : name.substr(chosen.size() + 1), shape);
  }
  return own;
}

/// Restricts the files to the tensors of one model, under its own names: files may contain the target and the draft of a
/// speculation, adapters next to their base, and Medusa's heads.
void select_model(const OptionValues& options, ShardedCheckpoint& shards, Checkpoint& checkpoint) {
  const Scheme& scheme = inference_scheme();
  const std::string chosen = options.choice(kFusedModel);
  const std::string& prefix = scheme.models.at(chosen);
  std::set<std::string> others, left_out;
  bool is_fused = false;
  const auto other_model_of = [&](const std::string& name) {
    for (const auto& [model, start] : scheme.models)
      if (name.starts_with(start)) return model;
    return std::string();
  };
  for (std::vector<Container>& of_stage : shards.files)
    for (Container& file : of_stage) {
      std::vector<TensorEntry> kept;
      for (TensorEntry& tensor : file.tensors) {
        const std::string model = other_model_of(tensor.name);
        is_fused = is_fused || !model.empty();
        if (!model.empty() && model != chosen) {
          others.insert(model);
          continue;
        }
        if (!model.empty()) tensor.name.erase(0, prefix.size());
        const auto is_in = [&](const std::string& part) { return tensor.name.find(part) != std::string::npos; };
        if (std::any_of(scheme.left_out.begin(), scheme.left_out.end(), is_in)) {
          left_out.insert(with_stars(tensor.name));
          continue;
        }
        tensor.name = unwrapped(std::move(tensor.name), scheme.wrapper);
        kept.push_back(std::move(tensor));
      }
      file.tensors = std::move(kept);
      if (!file.tensors.empty()) continue;
      throw Error(ErrorKind::kBadInput, fmt::format("contains no {} model", chosen))
          .in(file.path)
          .hint(fmt::format("`{}` applies to files of a fused speculation", kFusedModel.name));
    }
  if (chosen != kFusedModel.default_value && !is_fused)
    throw Error(ErrorKind::kUsage, fmt::format("`{}` {}: the files contain one model", kFusedModel.name, chosen))
        .in(checkpoint.path)
        .hint(fmt::format("leave out `{}`", kFusedModel.name));
  for (const std::string& model : others)
    checkpoint.notes.push_back(fmt::format("only the {} model is read; `{}` {}, with its `config`, reads the other one",
                                           chosen, kFusedModel.name, model));
  if (shards.record) {
    RankRecord& record = *shards.record;
    std::set<std::string> transposed;
    for (const std::string& name : record.transposed)
      if (const std::string model = other_model_of(name); model.empty() || model == chosen)
        transposed.insert(unwrapped(name.substr(model.empty() ? 0 : prefix.size()), scheme.wrapper));
    record.transposed = std::move(transposed);
    record.originals = std::make_shared<const OriginalShapes>(originals_of(*record.originals, chosen));
  }
  if (!left_out.empty())
    checkpoint.notes.push_back(
        "left out: adapters, whose scales and ranks the files do not contain, and Medusa's heads, which are in "
        "medusa_heads.pt of the original model: " +
        list_names(std::vector<std::string>(left_out.begin(), left_out.end())));
}

/// Notes the parameters that the files contain as results of rounded operations.
void note_rounded(const std::vector<PartitionRule>& rules, Checkpoint& checkpoint) {
  std::set<std::string> names;
  for (const PartitionRule& rule : rules)
    for (const PartitionRule::Part& part : rule.parts)
      if (part.changed && part.changed->change.rounds()) names.insert(with_stars(part.logical_name));
  if (!names.empty())
    checkpoint.notes.push_back(
        "the files contain sums and quotients that NxD Inference rounded, so that parameters have lost digits that "
        "cannot be recovered: " +
        list_names(std::vector<std::string>(names.begin(), names.end())));
}

/// Sets the model that the files contain, under the names of the larger model that config.json describes.
void set_prefixed_model(Checkpoint& checkpoint) {
  Model& model = *checkpoint.model;
  const LanguageModel& found = checkpoint.language_model;
  if (!model.family->inference || !found.family || !found.config.json) return;
  if (!model.is_part || model.family->inference->prefix.empty()) return;
  Model served = instantiate(with_inference_prefix(found).family, found.config);
  served.renamed = served.family->layers != found.family->layers;
  served.is_part = model.is_part;
  served.family_from = model.family_from;
  served.find_other_families = model.find_other_families;
  model = std::move(served);
}

void explain_nxdi(Files& files, const OptionValues& options, ShardedCheckpoint& shards, Checkpoint& checkpoint) {
  select_model(options, shards, checkpoint);
  recognise_rank_quantization(shards, checkpoint);
  set_prefixed_model(checkpoint);
  const Model& model = *checkpoint.model;
  validate_named(model);
  // The settings of a draft are not those of its target.
  const bool is_draft = options.choice(kFusedModel) != kFusedModel.default_value;
  if (is_draft && !checkpoint.config_given)
    throw Error(ErrorKind::kUsage, fmt::format("`{}` {}: the draft has a configuration of its own", kFusedModel.name,
                                               options.choice(kFusedModel)))
        .in(checkpoint.path)
        .hint("set `config` to the directory of the draft, or to its config.json");
  OptionValues declared =
      declared_options(files, checkpoint, options.choice(kFusedModel), shards.record.has_value(), options);
  erase_usual_degree(declared, shards.tp);
  find_head_padding(shards, model, declared);
  validate_padded_split(shards, checkpoint);
  std::set<std::string> held;
  for (const TensorEntry& tensor : shards.files.front().front().tensors) held.insert(tensor.name);
  const auto holds = [&](const std::string& name) { return held.count(name) > 0; };
  const OptionValues form = form_of(shards, model, declared, holds);
  const std::set<std::string> left_out = add_scales_in_files(shards, checkpoint, written_names(model, form), declared);
  std::vector<PartitionRule>& rules = shards.rules.emplace_back(read_rules(shards, model, form, holds));
  std::erase_if(rules, [&](const PartitionRule& rule) { return left_out.count(rule.stored_name) > 0; });
  note_rounded(rules, checkpoint);
  const std::optional<Kernels> given = kernels_of(declared, "from-");
  const Kernels kernels = kernels_in_files(shards, rules, model, given);
  if (!kernels.empty() && !given && !shards.record)
    checkpoint.notes.push_back(
        "the weights are transposed for NxD Inference's kernels; without neuron_config.json it is unknown whether "
        "fused_rmsnorm_skip_gamma changed their values");
  transpose_rules(rules, kernels);
  checkpoint.form = form;
  checkpoint.form.erase(kKernels.name);
  if (!kernels.empty()) checkpoint.form.set(kKernels.name, kernels_text(kernels));
}

/// Whether tensors have NxD Inference's names.
bool is_nxdi(const std::vector<TensorEntry>& tensors) {
  constexpr const char* kRankName = "rank_util.rank";
  constexpr std::string_view kLayers = "layers.";  // other checkpoints have a prefix before it
  return std::any_of(tensors.begin(), tensors.end(), [&](const TensorEntry& tensor) {
    std::string name = tensor.name;
    for (const auto& [model, prefix] : inference_scheme().models)
      if (name.starts_with(prefix)) name.erase(0, prefix.size());
    return name == kRankName || (name.starts_with(kLayers) && name.find("qkv_proj.") != std::string::npos);
  });
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
