#include "reshard/layouts/inference/nxdi_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <unordered_map>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/inference/inference_kernels.h"
#include "reshard/layouts/inference/nxdi_quantization.h"
#include "reshard/layouts/inference/nxdi_settings.h"
#include "reshard/layouts/inference/nxdi_shares.h"
#include "reshard/layouts/rules/rank_rules.h"
#include "reshard/specs/model/language_model.h"
#include "reshard/specs/model/quantization.h"

namespace reshard {

namespace {

/// Returns the built-in families that declare NxD Inference's names.
std::vector<std::string> inference_families() {
  std::vector<std::string> names = known_model_types();
  std::erase_if(names, [](const std::string& name) { return !builtin_family(name)->inference; });
  return names;
}

bool has_known_prefix(const Model& model) {
  const std::string& prefix = model.family->inference->prefix;
  return !prefix.empty() && (!model.renamed || model.family->layers.starts_with(prefix));
}

}  // namespace

std::string nxdi_prefix(const Model& model) {
  return model.renamed && model.family->inference ? model.family->inference->prefix : std::string();
}

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
  const auto built_in = nxdi_prefix(model).empty() ? nullptr : builtin_family(model.family->model_type);
  if (!nxdi_prefix(model).empty() && (built_in == nullptr || built_in->json_text != model.family->json_text))
    throw Error(ErrorKind::kUnsupported, "a description with `spec` does not apply to the names of a larger model")
        .hint("leave out `spec`, or give the language model alone");
  if (model.quantized && model.quant_method != inference_scheme().program)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("NxD Inference has no place for the scales of linears that are quantised by {}",
                            printable(model.quant_method)))
        .hint(fmt::format("{}, or choose an inference layout that keeps the checkpoint's names",
                          is_dequantized(model.quant_method) ? "set `dtype` to bfloat16, which dequantises the model"
                                                             : "dequantise the model first"));
}

Scheme nxdi_scheme(const Model& model, const OptionValues& form) {
  const auto own = nxdi_prefix(model).empty() ? nullptr : builtin_family(model.family->model_type);
  Scheme scheme = inference_scheme(own ? *own : *model.family,
                                   [&](const std::string& key) { return setting_in(form, key, model); });
  if (!model.quantization_marker.empty()) add_scale_entries(scheme, model.quantization_marker);
  return scheme;
}

namespace {

/// Returns the entries of a scheme, with stars for numbers.
std::set<std::string> entry_names(const Scheme& scheme) {
  std::set<std::string> names;
  const auto add = [&](const SchemeEntry& entry) {
    names.insert(entry.names.front());
    for (const SchemeEntry::Constant& constant : entry.constants) names.insert(constant.names.front());
  };
  for (const SchemeEntry& entry : scheme.entries) {
    add(entry);
    for (const SchemeEntry& copy : entry.copies) add(copy);
  }
  return names;
}

}  // namespace

std::set<std::string> unstored_parameters(const Model& model, const OptionValues& form) {
  std::set<std::string> parameters;
  for (const SchemeEntry& entry : nxdi_scheme(model, form).entries)
    if (entry.names.front().empty()) parameters.insert(entry.parameters.begin(), entry.parameters.end());
  return parameters;
}

OptionValues with_setting(OptionValues form, const LayoutOption& option, std::uint64_t degree) {
  if (option.type == LayoutOption::Type::kFlag)
    form.set_flag(option.name, true);
  else
    form.set_number(option.name, degree);
  return form;
}

std::uint64_t tried_degree(const OptionValues& form, const LayoutOption& option) {
  return option.type == LayoutOption::Type::kFlag ? 0 : std::max(degree_in(form, option), 2u);
}

std::set<std::string> names_with(const Model& model, const OptionValues& form, const LayoutOption& option) {
  OptionValues off = form;
  off.erase(option.name);
  std::set<std::string> names = entry_names(nxdi_scheme(model, with_setting(off, option, tried_degree(form, option))));
  for (const std::string& name : entry_names(nxdi_scheme(model, off))) names.erase(name);
  return names;
}

namespace {

constexpr const char* kPaddedExperts = "experts_of_256";  // in SchemeEntry::RankSplit::share

}  // namespace

bool has_effect(const Model& model, const OptionValues& form, const LayoutOption& option) {
  OptionValues off = form;
  off.erase(option.name);
  const auto forms = [&](const OptionValues& of) {
    using Values = std::set<std::pair<std::string, SchemeEntry::Constant::Value>>;
    using Changes = std::vector<std::string>;
    std::multiset<std::tuple<std::string, std::optional<std::uint32_t>, std::uint64_t, Values, Changes>> all;
    for (const SchemeEntry& entry : nxdi_scheme(model, of).entries) {
      Values values;
      for (const SchemeEntry::Constant& constant : entry.constants)
        values.emplace(constant.names.front(), constant.value);
      Changes changes;
      for (const SchemeEntry::Change& change : entry.changes) changes.push_back(change.text);
      all.emplace(entry.names.front(), entry.ranks.dim, entry.ranks.multiple, std::move(values), std::move(changes));
    }
    return all;
  };
  for (const auto& [key, setting] : model.family->inference->padded_sizes)
    if (nxdi_option(setting) == &option) return true;
  if (&option == &kSkipGamma) {
    const std::vector<Scheme::Altered> factors = nxdi_scheme(model, form).factors;
    const Kernels kernels = kernels_of(form).value_or(Kernels{});
    return std::any_of(factors.begin(), factors.end(),
                       [&](const Scheme::Altered& factor) { return kernels.count(factor.kernel) > 0; });
  }
  if (&option == &kDeclaredDtypes) return !nxdi_scheme(model, form).float32.empty();
  const bool is_padding =
      &option == &kShardOnIntermediate ||
      (&option == &kMoeTensorDegree && form.flag(kShardOnIntermediate.name) && degree_in(form, kMoeExpertDegree) == 1);
  if (!is_padding)
    return !names_with(model, form, option).empty() ||
           forms(off) != forms(with_setting(off, option, tried_degree(form, option)));
  const Scheme scheme = nxdi_scheme(model, form);
  return std::any_of(scheme.entries.begin(), scheme.entries.end(),
                     [](const SchemeEntry& entry) { return entry.ranks.share == kPaddedExperts; });
}

std::uint64_t served_layers(const Model& model) {
  const Json* own = model.config == nullptr ? nullptr : find_key(*model.config, "num_hidden_layers");
  return own != nullptr && own->is_number_unsigned() ? std::min(model.layers, own->get<std::uint64_t>()) : model.layers;
}

WrittenNames nxdi_names(const Model& model, const OptionValues& form) {
  return {model, std::make_shared<const Scheme>(nxdi_scheme(model, form)), 0};
}

std::vector<PartitionRule> nxdi_rules(const Model& model, std::uint32_t tp, const OptionValues& form,
                                      const HoldsName& holds, DType dtype) {
  validate_named(model);
  Model served = model;
  const std::string prefix = nxdi_prefix(model);
  if (!prefix.empty()) {
    served.family = builtin_family(model.family->model_type);
    for (ModelParameter& parameter : served.parameters)
      for (std::string* name : {&parameter.name, &parameter.module, &parameter.tied_to})
        if (name->starts_with(prefix)) name->erase(0, prefix.size());
  }
  std::erase_if(served.parameters, [layers = served_layers(model)](const ModelParameter& parameter) {
    return parameter.layer.value_or(0) >= std::max<std::uint64_t>(layers, 1);
  });
  const WrittenNames names = nxdi_names(served, form);
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

std::set<std::string> rounded_in(const std::vector<PartitionRule>& rules) {
  std::set<std::string> names;
  for (const PartitionRule& rule : rules)
    for (const PartitionRule::Part& part : rule.parts) {
      if (!part.changed || !part.changed->change.rounds()) continue;
      ValueChange change = part.changed->change;
      change.arrangement = nullptr;
      names.insert(with_stars(change.name_of(part.changed->parameter)));
    }
  return names;
}

}  // namespace reshard
