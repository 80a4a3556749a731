#include "reshard/plan/transforms/select.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/formats/safetensors/hf_index.h"
#include "reshard/layouts/states/training_states.h"
#include "reshard/plan/transforms/kept_layers.h"

namespace reshard {
namespace {

/// Returns the names that patterns apply to: those in the source, also of tensors that were renamed while it was read.
std::vector<std::string> names_in_source(const Draft& draft) {
  std::vector<std::string> names = draft.old_names;
  for (std::string& name : names)
    if (const auto old = draft.source.old_names.find(name); old != draft.source.old_names.end()) name = old->second;
  return names;
}

void note_useless_rules(Draft& draft, const NameRules& rules, const std::vector<std::string>& names) {
  const auto check = [&](const char* parameter, const NamePattern& pattern) {
    if (std::none_of(names.begin(), names.end(), [&](const std::string& name) { return pattern.matches(name); }))
      draft.source.notes.no_effect(fmt::format("{} {} matches no tensor", parameter, printable(pattern.text())));
  };
  for (const NamePattern& pattern : rules.drop) check("`drop`", pattern);
  for (const NamePattern& pattern : rules.keep) check("`keep`", pattern);
}

void note_useless_renames(Draft& draft, const NameRules& rules, const std::vector<bool>& matched) {
  for (std::size_t r = 0; r < matched.size(); ++r)
    if (!matched[r])
      draft.source.notes.no_effect(
          fmt::format("`rename` {} matches no tensor", printable(rules.renames[r].first.text())));
}

/// Notes the renames that had no effect while the source was read.
void note_useless_renames(Draft& draft, const NameRules& rules, std::vector<std::string> names) {
  std::vector<bool> matched(rules.renames.size());
  for (std::string& name : names)
    for (std::size_t r = 0; r < matched.size(); ++r) {
      const auto& [pattern, replacement] = rules.renames[r];
      if (!pattern.matches(name)) continue;
      matched[r] = true;
      name = pattern.replace(name, replacement);
    }
  note_useless_renames(draft, rules, matched);
}

/// Finds the layers that are left, for config.json, and notes layers that no program would find.
void select_layers(Draft& draft, const NameRules& rules, const std::vector<bool>& dropped) {
  auto layers = find_kept_layers(draft.source, dropped);
  if (!layers) {
    if (rules.renumber_layers)
      draft.source.notes.no_effect(
          "`renumber-layers` has no effect: no layer of a known model is left out, or all are");
    return;
  }
  if (layers->are_first() || rules.renumber_layers) {
    if (!layers->kinds.empty())
      draft.source.notes.changed(
          fmt::format("under their new numbers, some layers have another kind of attention, according to {} in "
                      "config.json; a list `layer_types` there would be cut with the layers",
                      list_names(layers->kinds)));
    if (!layers->patterns.empty() && !layers->are_first())
      draft.source.notes.assumed(
          "quantization_config has patterns that may contain numbers of layers, which stay as they are: " +
          list_names(layers->patterns));
    draft.layers = std::move(layers);
    return;
  }
  draft.source.notes.mismatch(
      fmt::format("only layers {} are left, under their own numbers, and config.json still counts {}: no program "
                  "loads such a model; `renumber-layers` numbers them from 0",
                  list_ranges(layers->kept), layers->count));
}

/// A dropped tensor yields its name to a renamed one.
void rename(Draft& draft, const NameRules& rules, const std::vector<bool>& dropped) {
  const bool renumbers = draft.layers && !draft.layers->are_first();
  if (rules.renames.empty() && !renumbers) return;
  SourceMap& map = draft.source.map;
  std::vector<bool> matched(rules.renames.size());
  std::unordered_map<std::string, std::string> old_names;  // keyed by new name
  std::vector<std::string> new_names = draft.old_names;
  for (std::size_t i = 0; i < new_names.size(); ++i) {
    if (map.logical[i].constant() || map.logical[i].role == TensorRole::kPart) continue;
    const std::string& old = draft.old_names[i];
    std::string& name = new_names[i];
    if (renumbers && !dropped[i]) name = renumbered(old, *draft.layers);
    for (std::size_t r = 0; r < rules.renames.size(); ++r) {
      const auto& [pattern, replacement] = rules.renames[r];
      if (!pattern.matches(name)) continue;
      matched[r] = true;
      name = pattern.replace(name, replacement);
    }
    if (dropped[i] && name.empty()) name = old;
    if (dropped[i]) continue;
    if (name.empty()) throw Error(ErrorKind::kUsage, "`rename` leaves an empty name").tensor(old);
    const auto [found, is_new] = old_names.emplace(name, old);
    if (!is_new)
      throw Error(ErrorKind::kUsage,
                  fmt::format("`rename` gives it and {} the same name, {}", printable(found->second), printable(name)))
          .tensor(old);
  }
  for (std::size_t i = 0; i < new_names.size(); ++i) {
    if (map.logical[i].constant() || !dropped[i]) continue;
    while (!old_names.emplace(new_names[i], draft.old_names[i]).second) new_names[i] += " (left out)";
  }
  note_useless_renames(draft, rules, matched);
  map.rename_logical(new_names);
}

std::uint64_t elems_of(const std::vector<LogicalTensor>& tensors) {
  std::uint64_t elems = 0;
  for (const LogicalTensor& tensor : tensors)
    if (!tensor.constant() && tensor.role != TensorRole::kPart) elems += num_elems(tensor.shape).value_or(0);
  return elems;
}

void follow_model(Draft& draft) {
  if (draft.source.states.empty()) return;
  const std::unordered_set<std::string_view> left_out(draft.dropped.begin(), draft.dropped.end());
  std::unordered_map<std::string_view, std::string_view> new_names;
  for (std::size_t i = 0; i < draft.old_names.size(); ++i) {
    const std::string_view name = draft.source.map.logical[i].name;
    if (left_out.count(name) > 0)
      new_names.emplace(draft.old_names[i], std::string_view());
    else if (name != draft.old_names[i])
      new_names.emplace(draft.old_names[i], name);
  }
  if (new_names.empty()) return;
  for (std::string& state : follow_parameters(draft.source.states, new_names, draft.source.path))
    draft.dropped.push_back(std::move(state));
}

}  // namespace

bool is_dropped(const NameRules& rules, const std::string& name) {
  const auto matches = [&](const NamePattern& pattern) { return pattern.matches(name); };
  if (std::any_of(rules.drop.begin(), rules.drop.end(), matches)) return true;
  return !rules.keep.empty() && std::none_of(rules.keep.begin(), rules.keep.end(), matches);
}

void select(Draft& draft, const NameRules& rules) {
  const SourceMap& map = draft.source.map;
  for (const LogicalTensor& tensor : map.logical) draft.old_names.push_back(tensor.name);
  const std::vector<std::string> in_source = names_in_source(draft);
  note_useless_rules(draft, rules, in_source);
  std::vector<bool> dropped;
  for (const std::string& name : in_source) dropped.push_back(is_dropped(rules, name));
  if (!rules.empty() || rules.renumber_layers) select_layers(draft, rules, dropped);
  if (draft.source.old_names.empty()) {
    rename(draft, rules, dropped);
  } else {
    note_useless_renames(draft, rules, in_source);
    rename(draft, {}, dropped);  // gives layers other numbers
  }
  std::size_t renamed = 0;
  for (std::size_t i = 0; i < map.logical.size(); ++i) {
    const LogicalTensor& tensor = map.logical[i];
    if (tensor.constant() || tensor.role == TensorRole::kPart) continue;
    if (dropped[i])
      draft.dropped.push_back(tensor.name);
    else
      draft.wanted.emplace_back(tensor).computed = nullptr;
    if (!dropped[i] && tensor.name != in_source[i]) ++renamed;
  }
  if (draft.wanted.empty()) throw Error(ErrorKind::kUsage, "`drop` and `keep` leave no tensor");
  if (renamed > 0) draft.transforms.push_back({Applied::Transform::kRename, renamed});
  if (!draft.dropped.empty()) {
    draft.transforms.push_back({Applied::Transform::kDrop, draft.dropped.size()});
    std::string& metadata = draft.source.index_metadata.text;
    metadata = recounted_metadata(metadata, elems_of(map.logical), elems_of(draft.wanted));
  }
  if (draft.layers) cut_model(draft.source, *draft.layers, draft.wanted);
  follow_model(draft);
}

}  // namespace reshard
