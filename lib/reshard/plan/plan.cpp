// Finds, reads, transforms, lays out, and makes the program.
#include "reshard/plan/plan.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/io/listed_files.h"
#include "reshard/layouts/core/expert_stacks.h"
#include "reshard/layouts/dcp/original_dtypes.h"
#include "reshard/layouts/found.h"
#include "reshard/layouts/hf/hf.h"
#include "reshard/layouts/interrupted_swap.h"
#include "reshard/layouts/layout_table.h"
#include "reshard/layouts/peft/sharded_adapter.h"
#include "reshard/layouts/read_checkpoint.h"
#include "reshard/plan/output/checks.h"
#include "reshard/plan/output/companions.h"
#include "reshard/plan/output/joined_models.h"
#include "reshard/plan/output/make_target.h"
#include "reshard/plan/output/outside_links.h"
#include "reshard/plan/source/metadata_model.h"
#include "reshard/plan/source/tags.h"
#include "reshard/plan/transforms/against_model.h"
#include "reshard/plan/transforms/cast.h"
#include "reshard/plan/transforms/dequantize.h"
#include "reshard/plan/transforms/extra_tensors.h"
#include "reshard/plan/transforms/select.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Chooses the target's layout if the request has none. A request with rank options keeps the layout of a sharded
/// source; one without keeps a layout that can contain optimizer state.
const Layout& layout_of_target(const Request& request, const Checkpoint& source) {
  const std::string option = rank_option(request.target);
  if (option.empty())
    return source.layout != nullptr && source.layout->traits().writes_states() ? *source.layout : whole_layout();
  if (source.has_mesh() && source.layout->traits().is_written()) return *source.layout;
  throw Error(ErrorKind::kUsage, fmt::format("`{}` applies to ranks, but layout {} has whole tensors", option,
                                             whole_layout().traits().name))
      .hint("choose a layout: `to` " + layout_names([](const Layout& layout) {
              return layout.traits().has_ranks() && layout.traits().is_written();
            }));
}

/// Sets the role of the request's model.
/// \throws Error kUsage if the request is invalid, whatever the source.
void validate(Files& files, Request& request) {
  if (!request.adapters.empty()) return validate_shards_adapters(request);
  take_roles(request);
  validate_request(request.target);
  validate_takes_states(request.source, *request.target.layout);
  if (request.source.with_optimizer && request.source.extra == ExtraTensors::kDrop)
    throw Error(ErrorKind::kUsage, "`extra-tensors` drop would leave out tensors whose optimizer states stay")
        .hint("name the tensors with `drop`, which also leaves out their states");
  if (request.source.kind == SourceKind::kWhole && request.output_directory &&
      files.is_same(request.source.path, *request.output_directory))
    throw Error(ErrorKind::kUsage, "the output directory is the model's own")
        .in(*request.output_directory)
        .hint("choose another output directory");
}

/// \param target  null if the layout of the source is unknown.
ReadContext context_of(const Request& request, const Layout* target) {
  ConfigUse use = request.names.empty() && !request.allow_missing ? ConfigUse::kStrict : ConfigUse::kRenamed;
  if (request.source.kind == SourceKind::kWhole) use = ConfigUse::kNeeded;
  const bool needs_groups = target != nullptr && target->traits().writes_groups_alone();
  const Beside read = needs_groups ? Beside::kReadGroups : Beside::kRead;
  return {use,
          request.source.family,
          request.source.options,
          {request.source.config},
          request.source.with_optimizer ? read : Beside::kCount,
          request.source.extra,
          request.names.renames.empty() ? Rename() : [&rules = request.names](const std::string& name) {
            return renamed(rules, name);
          }};
}

/// Reads adapters that PEFT saved; of the directory of a run, the step that find_checkpoint chooses.
Checkpoint read_adapters(Files& files, const std::vector<fs::path>& directories) {
  std::vector<fs::path> paths;
  Notes notes;
  for (const fs::path& directory : directories) {
    FoundCheckpoint found = find_checkpoint(files, directory, {}, SourceKind::kAny);
    paths.push_back(std::move(found.path));
    notes.add(found.notes);
  }
  Checkpoint adapters = read_peft_adapters(files, paths);
  adapters.notes.add_before(notes);
  return adapters;
}

Checkpoint read_source(Files& files, const Request& request) {
  for (const fs::path& directory : request.adapters) validate_not_swapping(files, directory);
  if (!request.adapters.empty()) return read_adapters(files, request.adapters);
  const FoundCheckpoint found = find_checkpoint(files, request.source.path, request.source.tag, request.source.kind);
  const Layout* const target = request.target.layout;
  const ReadContext context = context_of(request, target != nullptr ? target : found.layout(files));
  Checkpoint source = read_checkpoint(files, found, context);
  if (request.target.options.choice(kExperts) == "separate") separate_experts(source);
  return source;
}

fs::path output_beside(Files& files, const Checkpoint& source) {
  if (source.layout == nullptr)
    throw Error(ErrorKind::kUsage, "no output directory was given for the model in this file")
        .in(source.path)
        .hint("name an output directory after the file");
  if (const auto directory = source.layout->default_output(files, source.found())) return *directory;
  throw Error(ErrorKind::kUsage,
              fmt::format("no output directory was given, and layout {} has no folder next to which the model could be "
                          "written: it would be mixed with the checkpoint's files",
                          source.layout->traits().name))
      .in(source.path)
      .hint("name an output directory after the checkpoint's");
}

/// What is wrong with the source for this target, before anything is made of its tensors.
void validate_source(Files& files, const Request& request, Checkpoint& source) {
  if (request.target.lora_fuse && source.adapters.empty())
    throw Error(ErrorKind::kUsage, "`lora-fuse` has no effect: this is no adapter").in(source.path);
  const std::string of_states = state_option(request.target);
  if (request.source.with_optimizer) validate_has_states(of_states.empty() ? "with-optimizer" : of_states, source);
  validate_names(source, *request.target.layout);
  validate_has_tensors(source);
  validate_not_emptied(source, request.names);
  validate_outside(files, *request.output_directory, source);
  if (!source.adapters.empty()) validate_adapters(request, source);
}

/// Notes the adapters in the directory of a model, which stay as they are if the model is consolidated.
void note_adapters_left(Files& files, Checkpoint& model) {
  std::vector<std::string> folders;
  for (const AdapterFolder& adapter : find_adapter_folders(files, model.directory))
    folders.push_back(adapter.shards.directory.filename().string());
  if (!folders.empty())
    model.notes.left_out(
        fmt::format("only the model is consolidated, not the adapters next to it: {}; give {} to consolidate one",
                    list_names(folders), (model.directory / folders.front()).string()));
}

/// Gives a whole model the dtypes that it had before training, unless the request names one.
void take_model_dtypes(Files& files, const Request& request, Checkpoint& source) {
  const fs::path dtypes = take_original_dtypes(files, source);
  if (!dtypes.empty() && !request.dtype)
    source.notes.changed(
        fmt::format("tensors have the dtypes from before training, which {} records; `dtype` "
                    "chooses another",
                    dtypes.filename().string()));
}

/// Transforms the tensors. Names come first, since config.json, extra tensors and dtypes are matched by the new ones.
/// \param base_dtype  see cast.
Draft transform(Files& files, const Request& request, Checkpoint source, std::optional<DType> base_dtype = {}) {
  if (!request.target.layout->traits().has_ranks()) take_model_dtypes(files, request, source);
  Draft draft{std::move(source)};
  select(draft, request.names);
  hold_against_model(draft, request);
  dequantize(draft, request);
  if (draft.source.adapters.empty()) apply_extra_tensors(draft, request.source.extra, request.target);
  cast(files, draft, request, base_dtype);
  return draft;
}

/// Reads a model that is joined to `base`, or further weights of that model, and transforms its tensors.
Draft joined_draft(Files& files, Request& request, const Draft& base) {
  Checkpoint source = read_source(files, request);
  take_metadata_model(source, request.target);
  validate_source(files, request, source);
  request.target = completed(std::move(request.target), source);
  if (!source.adapters.empty()) read_adapter_configs(files, request, source);
  if (request.source.kind != SourceKind::kWhole) {
    Draft draft{std::move(source)};
    select(draft, request.names);
    draft.model = base.source.model;
    cast(files, draft, request, plain_dtype(base));
    return draft;
  }
  return transform(files, request, std::move(source), plain_dtype(base));
}

/// Plans a model that is joined to `base`. Errors name its files.
std::pair<Draft, TargetPlan> plan_joined(Files& files, const Request& request, const JoinedModel& model,
                                         const Draft& base) {
  Request own = request_for(request, model);
  try {
    Draft draft = joined_draft(files, own, base);
    validate_same_sizes(model, draft, base);
    TargetPlan plan = make_target(files, draft, own.target, *request.output_directory);
    return {std::move(draft), std::move(plan)};
  } catch (Error& error) {
    if (error.path().empty()) error.in(model.adapters.empty() ? model.source.path : model.adapters.front());
    throw;
  }
}

std::unique_ptr<Job> make_job(const Request& request, Draft draft, TargetPlan target, CarriedFiles carried) {
  auto job = std::make_unique<Job>();
  job->command = request.command;
  job->source_directory = std::move(draft.source.path);
  job->model_directory = std::move(draft.source.directory);
  job->output_directory = request.output_directory.value();
  job->force = request.force;
  job->family = std::move(draft.source.model_type);
  job->mesh = draft.source.mesh;
  job->source_partition = draft.source.partition;
  job->layout = request.target.layout;
  job->options = request.target.options;
  job->dtype = request.dtype;
  job->source = std::move(draft.source.map);
  job->transforms = std::move(draft.transforms);
  job->notes = std::move(draft.source.notes);
  if (request.target.layout->traits().has_ranks()) job->mesh = target.mesh;
  job->format = target.format;
  job->partition = std::move(target.partition);
  job->cut_names = std::move(target.cut_names);
  job->attention = std::move(target.attention);
  job->shares_directory = target.is_partial;
  job->whole_folders = std::move(target.whole_folders);
  job->target = std::move(target.map);
  job->text_files = std::move(target.text_files);
  std::move(carried.text_files.begin(), carried.text_files.end(), std::back_inserter(job->text_files));
  job->copied_files = std::move(carried.copied_files);
  return job;
}

std::unique_ptr<Job> plan_any(Files& files, Request request) {
  request.source.with_optimizer = request.source.with_optimizer || !state_option(request.target).empty();
  if (request.target.layout != nullptr) validate(files, request);  // before anything is read
  Checkpoint source = read_source(files, request);
  if (request.target.layout == nullptr) {
    request.target.layout = &layout_of_target(request, source);
    validate(files, request);
  }
  const bool is_model = source.adapters.empty();
  if (is_model) take_metadata_model(source, request.target);
  if (!request.output_directory) request.output_directory = output_beside(files, source);
  validate_source(files, request, source);
  note_states_left(source, *request.target.layout);
  if (is_model && request.source.kind == SourceKind::kShards) note_adapters_left(files, source);
  request.target = completed(std::move(request.target), source);
  if (!is_model) read_adapter_configs(files, request, source);
  Draft draft = transform(files, request, std::move(source));
  std::vector<TargetPlan> joined;
  std::vector<Draft> drafts;
  for (const JoinedModel& model : request.joined) {
    auto [own, plan] = plan_joined(files, request, model, draft);
    drafts.push_back(std::move(own));
    joined.push_back(std::move(plan));
  }
  TargetPlan target = make_target(files, draft, request.target, *request.output_directory, std::move(joined));
  for (std::size_t i = 0; i < drafts.size(); ++i) join_draft(draft, std::move(drafts[i]), request.joined[i].role);
  CarriedFiles carried =
      carry_files(files, draft, *request.target.layout, target, *request.output_directory, request.companions);
  add_states(draft.source.map, std::move(draft.source.states.map), target.map.same);
  const ProgramOptions options{request.check_replicas, draft.dropped, target.is_partial};
  auto job = make_job(request, std::move(draft), std::move(target), std::move(carried));
  job->program = make_program(job->source, job->target, options);
  return job;
}

}  // namespace

std::unique_ptr<Job> plan(Files& store, const Request& request) {
  ListedFiles files(store);
  std::unique_ptr<Job> job = plan_any(files, request);
  std::vector<fs::path> given = request.adapters;
  for (const JoinedModel& model : request.joined) {
    if (!model.source.path.empty()) given.push_back(model.source.path);
    given.insert(given.end(), model.adapters.begin(), model.adapters.end());
  }
  leave_out_outside_links(files, *job, request.source, given);
  return job;
}

std::unique_ptr<Job> plan_shard(Files& files, Request request) {
  request.command = "shard";
  request.source.kind = SourceKind::kWhole;
  const Layout* const wanted = request.target.layout;
  if (!request.adapters.empty() && wanted != nullptr && wanted->joined_roles().count(kJoinedAdapter) > 0)
    request.joined.push_back({kJoinedAdapter, {}, std::exchange(request.adapters, {})});
  if (!request.adapters.empty() && (wanted == nullptr || !wanted->traits().holds_adapters()))
    request.target.layout = &adapter_layout();
  if (request.target.layout == nullptr) request.target.layout = &default_rank_layout();
  return plan(files, request);
}

std::unique_ptr<Job> plan_consolidate(Files& files, Request request) {
  request.command = "consolidate";
  request.source.kind = SourceKind::kShards;
  if (request.target.layout == nullptr) request.target.layout = &whole_layout();
  return plan(files, request);
}

std::unique_ptr<Job> plan_convert(Files& files, Request request) {
  request.command = "convert";
  if (request.target.layout == nullptr && rank_option(request.target).empty() && !request.source.with_optimizer)
    request.target.layout = &whole_layout();
  return plan(files, request);
}

}  // namespace reshard
