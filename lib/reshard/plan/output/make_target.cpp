#include "reshard/plan/output/make_target.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <span>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/paths.h"
#include "reshard/base/strings.h"
#include "reshard/formats/safetensors/hf_index.h"
#include "reshard/io/files.h"
#include "reshard/layouts/layout_table.h"
#include "reshard/layouts/optimizer/optimizer_ids.h"
#include "reshard/layouts/ranks/rank_format.h"
#include "reshard/layouts/training/adapter_target.h"
#include "reshard/plan/output/file_metadata.h"
#include "reshard/plan/output/joined_models.h"
#include "reshard/plan/transforms/derived.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Whether it is a tied copy in the source; if several ranks have it, the first rank's.
bool is_tied_once(const SourceMap& source, const StoredTensor& tensor) {
  return tensor.tied && source.files[tensor.file].tp_rank == 0 && source.files[tensor.file].ep_rank == 0;
}

/// Notes tied tensors: each copy in the source is compared with the tensor that it is tied to. Hugging Face files omit
/// it.
void note_tied(Draft& draft, const Layout& target) {
  const SourceMap& source = draft.source.map;
  std::set<std::string> noted;  // a tensor may be stored in many chunks
  for (std::size_t l = 0; l < source.pieces.size(); ++l)
    for (const Piece& piece : source.pieces[l]) {
      const StoredTensor& tensor = source.stored[piece.stored];
      if (!is_tied_once(source, tensor)) continue;
      const std::string name = printable(tensor.name.text());
      if (!noted.insert(name).second) continue;
      const bool is_split = target.traits().has_ranks();  // and nothing is left out
      draft.source.notes.add(
          {is_split ? NoteKind::kHint : NoteKind::kLeftOut,
           fmt::format("{} is tied to {}: the two are compared, and {}", name, printable(source.logical[l].name),
                       is_split ? "consolidating the files leaves out the replica"
                                : "it is left out, because Hugging Face's file contains it once")});
    }
}

/// Whether a sharded checkpoint has no optimizer next to its weights, so that only the weights would be hidden.
bool is_model_alone(Files& files, const FoundLayout& found) {
  const RankFormat* const ranks = found.layout->ranks();
  if (ranks == nullptr) return false;
  const auto optimizer = ranks->optimizer_in(found.path);
  return !optimizer || *optimizer == found.path || !files.exists(*optimizer);
}

/// Returns the folder that contains the weights of a checkpoint.
fs::path weights_folder_of(const FoundLayout& found) {
  return found.layout->ranks() == nullptr ? found.path : ranks_of(found).weights_in(found.path);
}

/// Whether a checkpoint in this layout is addressed by its output directory, not by a folder in it.
bool is_output_itself(const Layout& layout) {
  const std::string_view folder = layout.traits().folder;
  return folder.empty() || (layout.ranks() != nullptr && layout.ranks()->weights_folder == folder);
}

/// Validates that neither the old ranks nor the new ones are in the output directory itself, since no path would
/// address one of them alone. Whole weights may be written next to ranks of a model: they are the same model. Notes other
/// ranks that stay.
void validate_alone(Files& files, Draft& draft, const Layout& target, const TargetPlan& plan,
                    const fs::path& output_directory) {
  const auto replaces = [&](const fs::path& folder) {
    return folder != output_directory &&
           std::any_of(plan.map.files.begin(), plan.map.files.end(),
                       [&](const TargetFile& file) { return lies_inside(output_directory / file.path, folder); });
  };
  if (!files.is_directory(output_directory)) return;
  const bool is_itself = target.traits().has_ranks() && is_output_itself(target);
  std::set<fs::path> noted;
  try {
    for (const Layout* layout : layouts()) {
      const LayoutTraits& traits = layout->traits();
      if (layout == &target || !traits.has_ranks()) continue;
      for (const FoundLayout& found : layout->recognise(files, output_directory)) {
        if (found.is_empty || replaces(weights_folder_of(found))) continue;
        if ((is_itself || found.path == output_directory) &&
            (target.traits().has_ranks() || !is_model_alone(files, found)))
          throw Error(
              ErrorKind::kBadInput,
              fmt::format("contains a sharded checkpoint in layout {}, which could not be read with another next to it",
                          traits.name))
              .in(output_directory)
              .hint("move its files away or choose another output directory");
        if (target.traits().has_ranks() && noted.insert(found.path).second)  // several layouts may recognise it
          draft.source.notes
              .output(fmt::format(
                  "{} contains another sharded checkpoint, which is kept: commands need the path of one "
                  "of them, {} or {}",
                  output_directory.string(), found.path.string(), (output_directory / target.traits().folder).string()))
              .in(found.path);
      }
    }
  } catch (const Error& error) {
    if (error.code() != std::errc::permission_denied) throw;  // a writable directory need not be readable
  }
}

/// Notes whole weights that stay in the output directory: its path refers to them, even if ranks are added. Not needed
/// if they are the source, and thus the same model.
void note_whole_weights(Files& files, Draft& draft, const Layout& target, const fs::path& output_directory) {
  const fs::path output = files.resolve(output_directory);
  if (!target.traits().has_ranks() || !files.is_directory(output)) return;
  if (lies_inside(files.resolve(draft.source.path), output)) return;
  try {
    for (const Layout* layout : layouts()) {
      if (layout->traits().has_ranks()) continue;
      for (const FoundLayout& found : layout->recognise(files, output))
        if (found.path == output && !found.is_empty)
          draft.source.notes
              .output(fmt::format(
                  "{0} contains other weights, in layout {1}, which are kept; commands with the path {0} read those{2}",
                  output_directory.string(), layout->traits().name,
                  is_output_itself(target) ? ": move them away to read the new ones"
                                           : fmt::format(", and commands with the path {} read the new ones",
                                                         (output_directory / target.traits().folder).string())))
              .in(output_directory);
    }
  } catch (const Error& error) {
    if (error.code() != std::errc::permission_denied) throw;  // a writable directory need not be readable
  }
}

/// Returns the source's partition options that the target keeps. Replication and padding of heads depend on the number
/// of ranks.
PartitionOptions kept_partition(const Checkpoint& source, const TargetRequest& request) {
  PartitionOptions kept = source.partition;
  if (request.tp.value_or(1) == source.mesh.tp) return kept;
  kept.kv_size_multiplier.reset();
  kept.pad_heads = false;
  return kept;
}

/// Notes options that the source was written with, in the same layout, but the output is not.
void note_other_form(Draft& draft, const OptionValues& options) {
  std::vector<std::string> lost;
  for (const auto& [name, value] : draft.source.form.all())
    if (!options.has(name))
      lost.push_back(value == "true" ? fmt::format("`{}`", name) : fmt::format("`{}` {}", name, value));
  if (!lost.empty())
    draft.source.notes.changed(fmt::format(
        "the source was written with {}, but the output is written without: use the same options to keep its format",
        join(lost, " and ")));
}

}  // namespace

TargetRequest completed(TargetRequest request, const Checkpoint& source) {
  const LayoutTraits& traits = request.layout->traits();
  if (!traits.has_ranks() || traits.needs_no_mesh()) return request;
  const bool from_ranks = source.has_mesh();
  if (!request.tp && !from_ranks)
    throw Error(ErrorKind::kUsage, "`tp` is required: the number of tensor-parallel ranks");
  if (!request.tp) request.tp = source.mesh.tp;
  if (!request.pp && request.pipeline_cuts.empty() && from_ranks && traits.has_stages()) request.pp = source.mesh.pp;
  if (!source.adapters.empty()) return request;
  if (!request.ep && from_ranks && traits.has_experts()) request.ep = source.mesh.ep;
  if (source.layout != request.layout) return request;
  if (!request.format) request.format = source.format;
  // A run continues with the form in which it was saved; sizes are those of its ranks. Weights to be served keep choices,
  // such as the version of the server, but must be written with the flags of the server that loads them.
  for (const LayoutOption* option : request.layout->options()) {
    const auto own = source.form.all().find(option->name);
    const bool is_number = option->type == LayoutOption::Type::kDegree || option->type == LayoutOption::Type::kCount;
    const bool is_kept = traits.writes_states() ? !is_number || request.tp == source.mesh.tp
                                                : option->type == LayoutOption::Type::kChoice;
    if (is_kept && own != source.form.all().end() && !request.options.has(option->name))
      request.options.set(option->name, own->second);
  }
  return request;
}

namespace {

/// Adds to the hint of an error that the compiled model has another model_type, if so.
void hint_for_compiled(Files& files, const Draft& draft, const TargetRequest& request, Error& error) {
  const std::optional<ModelConfig>& own = draft.source.config.content;
  if (request.compiled.empty() || !own || request.layout->joined_roles().count(request.role) > 0) return;
  if (!find_model_config(files, request.compiled)) return;
  const std::string compiled = read_model_config(files, request.compiled).model_type;
  if (compiled.empty() || compiled == own->model_type) return;
  error.hint(fmt::format("{}{}{} was compiled for a {} model, not for a {} model", error.hint(),
                         error.hint().empty() ? "" : "; ", request.compiled.string(), printable(compiled),
                         printable(own->model_type)));
}

/// Returns the target's plan as its layout makes it.
TargetPlan layout_plan(Files& files, const Draft& draft, const TargetRequest& request,
                       std::span<const std::shared_ptr<const FileMetadata>> metadata) {
  const Checkpoint& source = draft.source;
  const TargetContext context{.model = draft.model_or_null(),
                              .logical = draft.wanted,
                              .index_metadata = source.index_metadata,
                              .states = source.states_or_null(),
                              .source_dp = source.mesh.dp,
                              .source_partition = kept_partition(source, request),
                              .metadata = metadata,
                              .weights_stem = source.weights_stem,
                              .adapters = source.adapters};
  try {
    return source.adapters.empty() ? request.layout->plan(request, context) : plan_adapters(request, context);
  } catch (Error& error) {  // a layout knows the tensor, but not where it is
    const bool is_of_source =
        error.kind() == ErrorKind::kBadInput || (error.kind() == ErrorKind::kUnsupported && !error.tensor().empty());
    if (is_of_source && error.path().empty()) error.in(source.layout == nullptr ? source.path : source.directory);
    hint_for_compiled(files, draft, request, error);
    throw;
  }
}

/// Validates a plan against the files that are in the output directory or belong to the compiled model.
/// \param is_first  whether no other model is in the same files.
void validate_beside(Files& files, Draft& draft, const TargetRequest& request, const TargetPlan& plan,
                     const fs::path& output_directory, bool is_first) {
  if (!draft.source.adapters.empty()) return validate_beside_adapters(files, plan, output_directory);
  if (is_first) {
    validate_alone(files, draft, *request.layout, plan, output_directory);
    request.layout->validate_beside(files, plan, output_directory);
  }
  if (!draft.model) return;
  for (const fs::path& directory : {request.compiled, output_directory, directory_above(files, output_directory)})
    if (!directory.empty()) request.layout->validate_compiled(files, plan, *draft.model, directory);
}

/// Takes the text files out of the map of a plan, and adds the index's metadata, which ranks keep in a file.
void collect_text_files(TargetPlan& plan, const LayoutTraits& traits, const IndexMetadata& metadata) {
  plan.text_files.insert(plan.text_files.begin(), std::move_iterator(plan.map.text_files.begin()),
                         std::move_iterator(plan.map.text_files.end()));
  plan.map.text_files.clear();
  if (traits.has_ranks() && !metadata.text.empty() && plan.has_first_rank)  // by the first of several runs
    plan.text_files.push_back({kKeptIndexMetadataFile, kept_index_metadata_text(metadata.text), metadata.file});
}

/// Adds the notes of a plan to those of the source.
void add_notes(Draft& draft, const TargetRequest& request, const TargetPlan& plan) {
  Notes& notes = draft.source.notes;
  if (draft.model && draft.source.adapters.empty()) notes.add(idle_option_notes(request, *draft.model, plan));
  notes.add(plan.notes);
  if (plan.loaded_by.empty()) return;
  const bool needs_names = draft.was(Applied::Transform::kRename) && !draft.layers;
  notes.hint(plan.loaded_by +
             (needs_names ? "; the model that loads them must have the names that `rename` gave" : ""));
}

}  // namespace

TargetPlan make_target(Files& files, Draft& draft, const TargetRequest& request, const fs::path& output_directory,
                       std::vector<TargetPlan> joined) {
  const Checkpoint& source = draft.source;
  const LayoutTraits& traits = request.layout->traits();
  const bool has_ids = source.states_or_null() != nullptr && !source.states.has_names();
  if (has_ids && !traits.writes_groups_alone())
    throw Error(ErrorKind::kUsage,
                fmt::format("`from-optimizer-groups` ids: layout {} has names instead of ids", traits.name))
        .in(source.directory)
        .hint("choose the rule by which parameters were grouped, or use the source's own layout");
  if (source.layout == request.layout) note_other_form(draft, request.options);
  const std::vector<std::shared_ptr<const FileMetadata>> metadata = wanted_metadata(draft);
  validate_request(request);
  TargetPlan plan = layout_plan(files, draft, request, metadata);
  plan.format = format_of(request);
  plan.role = request.role;
  validate_metadata(draft, traits, plan, metadata);
  join_plans(plan, std::move(joined));
  if (has_ids) validate_same_ranks(source.map, plan.map);
  const bool is_model = source.adapters.empty();
  const bool is_first = request.layout->joined_roles().count(request.role) == 0;
  validate_beside(files, draft, request, plan, output_directory, is_first);
  collect_text_files(plan, traits, source.index_metadata);
  if (traits.whole_folder && is_model) plan.whole_folders.insert(plan.whole_folders.begin(), traits.folder);
  add_notes(draft, request, plan);
  install_derived(draft, std::move(plan.derived), plan.map);
  draft.dropped.insert(draft.dropped.end(), plan.without_place.begin(), plan.without_place.end());
  note_tied(draft, *request.layout);
  if (is_model && is_first) note_whole_weights(files, draft, *request.layout, output_directory);
  return plan;
}

}  // namespace reshard
