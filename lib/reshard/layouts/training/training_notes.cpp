#include "reshard/layouts/training/training_notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "reshard/base/strings.h"
#include "reshard/specs/stages/stage_plan.h"

namespace reshard {
namespace {

/// Returns "mamba" for "mamba.in_proj".
std::string_view first_part(std::string_view name) {
  return name.substr(0, name.find('.'));
}

/// Returns "model.visual" for "model.visual.merger.weight", "visual" for "visual.merger.weight".
std::string outer_part(std::string_view name) {
  constexpr std::string_view kModel = "model.";
  const std::size_t from = name.starts_with(kModel) ? kModel.size() : 0;
  return std::string(name.substr(0, std::min(name.size(), name.find('.', from))));
}

/// A module in layers, such as "mlp.gate".
struct LayerModule {
  bool has_matrix = false;
  bool is_split = false;
};

/// Returns the modules that every rank has whole. Names of modules in layers are only as long as required to
/// distinguish them from split modules: "mamba", "mlp.gate".
std::vector<std::string> replicated_modules(const Model& model) {
  const std::string& layers = model.family->layers;
  std::map<std::string, LayerModule, std::less<>> in_layers;
  std::set<std::string, std::less<>> outside;
  for (const ModelParameter& parameter : model.parameters) {
    if (parameter.layer) {
      if (parameter.expert.value_or(0) != 0) continue;  // like the first
      std::string_view name = parameter.module;
      name.remove_prefix(std::min(name.size(), layers.size() + 1));
      name.remove_prefix(std::min(name.size(), name.find('.') + 1));
      LayerModule& module = in_layers[with_stars(name)];
      module.is_split = module.is_split || parameter.split_dim;
      module.has_matrix = module.has_matrix || (parameter.shape.size() > 1 && !parameter.optional);
    } else if (parameter.shape_known == ShapeKnown::kNot && !parameter.name.ends_with(".inv_freq")) {
      outside.insert(outer_part(parameter.name));
    }
  }
  std::set<std::string_view> split_parts;
  for (const auto& [name, module] : in_layers)
    if (module.is_split) split_parts.insert(first_part(name));
  std::vector<std::string> names(outside.begin(), outside.end());
  for (const auto& [name, module] : in_layers) {
    if (module.is_split || !module.has_matrix) continue;
    const std::string_view part = first_part(name);
    std::string full = layers + ".*." + (split_parts.count(part) > 0 ? name : std::string(part));
    if (std::find(names.begin(), names.end(), full) == names.end()) names.push_back(std::move(full));
  }
  return names;
}

/// Returns a note that heads may be split because their number is unknown; std::nullopt if it is known or if the split
/// affects no linear in a layer.
std::optional<std::string> unchecked_heads_note(const Model& model, std::uint64_t tp) {
  const bool described = model.family_from == FamilyFrom::kSpec;
  if ((!described && !model.by_config_plan) || model.family->attention) return std::nullopt;
  bool splits_linears = false;
  for (const ModelParameter& parameter : model.parameters) {
    if (parameter.heads != 0) return std::nullopt;
    splits_linears = splits_linears || (parameter.layer && parameter.split_dim && parameter.shape.size() > 1 &&
                                        parameter.plan != TensorParallelPlan::kEmbeddingRowwise);
  }
  if (!splits_linears) return std::nullopt;
  const std::string unchecked = fmt::format("it was not checked whether `tp` {} splits attention heads", tp);
  if (described)
    return fmt::format(
        "the description has neither \"attention\" nor a module with \"heads\", so {}; ranks with metadata "
        "take both from the num_attention_heads and num_key_value_heads of a config.json (`config`)",
        unchecked);
  if (model.heads == 0)
    return fmt::format("config.json has no num_attention_heads, so {}; add num_attention_heads and num_key_value_heads",
                       unchecked);
  return fmt::format("the plan in config.json splits no q_proj, k_proj or v_proj along its outputs, so {}", unchecked);
}

}  // namespace

Notes partition_notes(const Model& model, std::uint64_t tp) {
  if (tp == 1) return {};
  Notes notes = model.notes;
  if (auto note = unchecked_heads_note(model, tp)) notes.assumed(std::move(*note));
  if (const auto names = replicated_modules(model); !names.empty())
    notes.hint("replicated on every tensor-parallel rank: " + list_names(names)).of(names);
  return notes;
}

Notes assumed_stage_notes(const Model& model, std::uint64_t pp) {
  constexpr std::size_t kMost = 3;
  if (pp == 1 || (model.family_from != FamilyFrom::kSpec && !model.by_config_plan)) return {};
  std::vector<std::string> names;
  for (const ModelParameter& parameter : model.parameters)
    if (parameter.stage == OuterStage::kAssumedFirst) names.push_back(parameter.name);
  if (names.empty()) return {};
  return Note{
      NoteKind::kAssumed,
      fmt::format(
          "on the first pipeline stage, because no other stage is declared: {}; {} names the modules of the last stage",
          list_names(names, kMost),
          model.by_config_plan ? "base_model_pp_plan in config.json" : "\"stage\": \"last\" in the description"),
      names};
}

Notes split_heads_notes(const Model& model, std::uint64_t tp) {
  std::set<std::string> modules;
  if (model.family->attention && model.kv_heads % tp != 0)
    for (const std::string& linear : {model.family->attention->key, model.family->attention->value})
      modules.insert(model.family->attention->module + "." + linear);
  for (const ModelParameter& parameter : model.parameters)
    if (parameter.split_dim && parameter.heads != 0 && parameter.heads % tp != 0 && !parameter.is_bias &&
        !has_pairs(model, parameter))
      modules.insert(with_stars(parameter.module));
  if (modules.empty()) return {};
  const std::vector<std::string> names(modules.begin(), modules.end());
  return Note{NoteKind::kHint,
              "split within heads or groups of heads, as NxD's shard_checkpoint does: " + list_names(names)};
}

}  // namespace reshard
