#include "reshard/plan/transforms/against_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_set>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/core/misfits.h"
#include "reshard/layouts/core/strangers.h"
#include "reshard/layouts/core/tied_tensors.h"
#include "reshard/layouts/layout_table.h"
#include "reshard/plan/transforms/kept_layers.h"
#include "reshard/plan/transforms/select.h"
#include "reshard/specs/model/language_model.h"

namespace reshard {
namespace {

std::string counted(std::size_t tensors) {
  return tensors == 1 ? "1 tensor" : fmt::format("{} tensors", tensors);
}

/// \throws Error kBadInput for tensors with other shapes than in config.json, unless such tensors are only noted.
void validate_shapes(Draft& draft, const Misfits& misfits) {
  if (misfits.shapes.empty()) return;
  const auto& [tensor, expected] = misfits.shapes.front();
  const std::string what = fmt::format("has the shape {}, but config.json asks for {}", to_string(tensor->shape),
                                       to_string(expected->shape));
  if (draft.source.config.is_given || (draft.source.layout != nullptr && draft.source.layout != &whole_layout()))
    throw Error(ErrorKind::kBadInput, what)
        .in(draft.source.path)
        .tensor(tensor->name)
        .hint("config.json belongs to another model, or the checkpoint is damaged");
  draft.source.notes.mismatch(
      fmt::format("{} of other shapes than config.json asks for, such as {}, which {}",
                  misfits.shapes.size() == 1 ? "1 tensor is" : counted(misfits.shapes.size()) + " are",
                  printable(tensor->name), what));
}

/// Whether layers have other numbers than in the source.
bool is_renumbered(const Draft& draft) {
  return draft.layers && !draft.layers->are_first();
}

/// Returns the tensors in config.json that are not wanted and that no name rule explains; notes the others.
std::vector<std::string> missing_tensors(Draft& draft, const Misfits& misfits, const NameRules& rules) {
  const bool renumbers = is_renumbered(draft);
  const std::unordered_set<std::string_view> dropped(draft.dropped.begin(), draft.dropped.end());
  std::unordered_set<std::string_view> dropped_there, renamed_away;  // names in the source
  for (std::size_t i = 0; i < draft.old_names.size(); ++i) {
    const std::string &old = draft.old_names[i], &now = draft.source.map.logical[i].name;
    if (dropped.count(now) > 0)
      dropped_there.insert(old);
    else if (now != (renumbers ? renumbered(old, *draft.layers) : old))
      renamed_away.insert(old);
  }
  std::vector<std::string> missing;
  std::vector<std::string> left_out;
  std::size_t other_names = 0;
  for (const std::string& name : misfits.missing) {
    const std::string there = renumbers ? name_before_renumbering(name, *draft.layers) : name;
    if (dropped_there.count(there) > 0 || (!renumbers && dropped.count(name) > 0) || is_dropped(rules, there))
      left_out.push_back(name);
    else if (renamed_away.count(there) > 0)
      ++other_names;
    else
      missing.push_back(name);
  }
  if (!left_out.empty())
    draft.source.notes
        .left_out(fmt::format("`drop` or `keep` leaves out {} that config.json asks for: {}", counted(left_out.size()),
                              list_names(left_out)))
        .of(left_out);
  if (other_names > 0)
    draft.source.notes.changed(
        fmt::format("`rename` gives {} other names than config.json asks for", counted(other_names)));
  return missing;
}

/// Returns the model with the current names of its tensors.
Model renamed_model(const Draft& draft, const NameRules& rules, std::span<const LogicalTensor> tensors) {
  if (rules.renames.empty() || !draft.source.language_model.family) return *draft.source.model;
  std::unordered_set<std::string_view> names;
  for (const LogicalTensor& tensor : tensors) names.insert(tensor.name);
  return instantiate(draft.source.language_model, names);
}

/// Whether the tensors are those of a base model alone, such as LlamaModel, whose names have no prefix.
/// \param layers  where the tensors have their layers.
bool is_base_alone(const Draft& draft, const Family& family, const std::string& layers) {
  if (!family.layers.ends_with("." + layers)) return false;
  const std::string base = family.layers.substr(0, family.layers.size() - layers.size());
  return std::none_of(draft.wanted.begin(), draft.wanted.end(), [&](const LogicalTensor& tensor) {
    return std::any_of(family.modules.begin(), family.modules.end(), [&](const Family::Module& module) {
      return !module.name.starts_with(base) && tensor.name.starts_with(module.name + ".");
    });
  });
}

/// Notes names under which programs would not find the model's layers.
void note_moved_layers(Draft& draft, const Model& renamed) {
  const Checkpoint& source = draft.source;
  if (!source.language_model.family) return;
  const std::string &usual = source.language_model.family->layers, &now = renamed.family->layers;
  const bool is_own = now == source.model->family->layers;
  if (now == usual || (is_own && !usual.ends_with("." + now))) return;  // parts of larger models have other names
  if (is_base_alone(draft, *source.language_model.family, now)) return;
  draft.source.notes.changed(fmt::format("{} {}.*; programs that load a model of family {} look for {}.*",
                                         is_own ? "layers have the names" : "`rename` gives layers the names", now,
                                         renamed.family->model_type, usual));
}

/// Refuses a model of a known family with an adapter that is not merged. In a file without a
/// known family, notes it.
void refuse_unmerged_adapter(Draft& draft) {
  const Checkpoint& source = draft.source;
  if (!source.adapters.empty()) return;
  std::vector<std::string_view> names;
  for (const LogicalTensor& tensor : draft.wanted) names.push_back(tensor.name);
  auto unmerged = unmerged_adapter(names, source.model ? &*source.model : nullptr);
  if (!unmerged) return;
  if (source.language_model.family) throw unmerged->in(source.path);
  if (source.layout == nullptr)
    draft.source.notes.missing(fmt::format("{}; {}", unmerged->in(source.path).what(), unmerged->hint()))
        .in(source.path);
}

/// Validates tensors that are not split, or whose split is recorded in files: some may be missing, and others may be
/// added.
void validate_complete(Draft& draft, const Request& request) {
  const auto note_idle = [&](const char* why) {
    if (request.allow_missing) draft.source.notes.no_effect(fmt::format("`allow-missing` has no effect: {}", why));
  };
  const Checkpoint& source = draft.source;
  if (request.names.empty()) refuse_unmerged_adapter(draft);
  if (!source.adapters.empty() || !source.model || source.model->quantization_problem)
    return note_idle("the tensors of the model are unknown");
  const Model model = renamed_model(draft, request.names, source.map.logical);
  const Misfits misfits = find_misfits(draft.wanted, model);
  validate_shapes(draft, misfits);
  if (!request.allow_missing) validate_head(draft.wanted, model, misfits, source.path);
  note_moved_layers(draft, model);
  // When training checkpoints are read, this was noted already, unless they may change.
  if (!misfits.unlisted.empty() && request.source.extra == ExtraTensors::kRefuse &&
      (!source.beside_model || !request.names.empty() || request.allow_missing)) {
    std::vector<std::string> unlisted;
    for (const LogicalTensor* tensor : misfits.unlisted) unlisted.push_back(tensor->name);
    const auto layers = layers_problem(draft.wanted, misfits, model);
    draft.source.notes.mismatch(layers.value_or("config.json does not explain these tensors: " + list_names(unlisted)))
        .of(unlisted);
  }
  const std::vector<std::string> missing = missing_tensors(draft, misfits, request.names);
  if (missing.empty())
    return note_idle(misfits.missing.empty() ? "no tensor is missing" : "no other tensor is missing");
  const std::string what = missing.size() == 1
                               ? "1 tensor that config.json asks for is missing"
                               : fmt::format("{} tensors that config.json asks for are missing", missing.size());
  if (request.allow_missing) {
    draft.source.notes.missing(fmt::format("{}: {}", what, list_names(missing, SIZE_MAX))).of(missing);
    return;
  }
  const bool renumbers = is_renumbered(draft);
  throw Error(ErrorKind::kBadInput,
              fmt::format("{}{}: {}", what, renumbers ? " under the new numbers of layers" : "", list_names(missing)))
      .in(source.path)
      .hint((renumbers ? "the checkpoint is incomplete, or config.json has other kinds of layers for these numbers"
                       : hint_for_missing(missing, model)) +
            "; `allow-missing` writes the existing tensors");
}

/// Validates that the tensors are exactly the model's.
void validate_explained(Draft& draft, const Request& request) {
  const Checkpoint& source = draft.source;
  if (!source.model)
    throw Error(ErrorKind::kBadInput,
                "has no config.json of a known family, which defines how the parameters are split")
        .in(source.directory)
        .hint(source.config.path.empty() ? "set `config` to the model's config.json" : hint_for_model(source));
  draft.model = renamed_model(draft, request.names, draft.wanted);
  untie_held(*draft.model, draft.wanted);
  try {
    validate_against_model(draft.wanted, *draft.model, request.source.path, request.source.extra);
  } catch (Error& error) {
    if (!request.names.renames.empty() || !draft.dropped.empty())
      throw error.hint("with `rename`, `drop` and `keep`, the remaining tensors must be the model of config.json; " +
                       std::string(is_renumbered(draft)
                                       ? "it may have other kinds of layers for the new numbers"
                                       : "if only some layers are left, `renumber-layers` numbers them from 0"));
    // Reading the source found all tensors of config.json, so these are additional ones.
    if (source.layout != nullptr && source.layout->traits().needs_no_mesh())
      error.hint(error.hint() + "; to leave out a trainer's other tensors, such as buffers, use `drop`");
    throw;
  }
  note_moved_layers(draft, *draft.model);
}

}  // namespace

void hold_against_model(Draft& draft, const Request& request) {
  draft.model = draft.source.model;
  const LayoutTraits& traits = request.target.layout->traits();
  const bool has_mesh = traits.has_ranks() && !traits.needs_no_mesh();
  if (has_mesh && request.allow_missing)
    throw Error(ErrorKind::kUsage,
                fmt::format("`allow-missing`: layout {} needs every tensor of the model", traits.name))
        .hint("it is supported by layouts " + layout_names([](const Layout& layout) {
                return layout.traits().is_written() &&
                       (!layout.traits().has_ranks() || layout.traits().needs_no_mesh());
              }));
  if (!draft.source.adapters.empty()) return validate_complete(draft, request);
  if (has_mesh || (request.source.kind == SourceKind::kWhole && !request.allow_missing))
    validate_explained(draft, request);
  else
    validate_complete(draft, request);
}

}  // namespace reshard
