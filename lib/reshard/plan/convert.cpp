#include "reshard/plan/job/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/formats/safetensors/hf_index.h"
#include "reshard/layouts/core/expert_stacks.h"
#include "reshard/layouts/core/misfits.h"
#include "reshard/layouts/core/strangers.h"
#include "reshard/layouts/core/tied_tensors.h"
#include "reshard/layouts/hf/hf.h"
#include "reshard/layouts/map/whole_map.h"
#include "reshard/plan/adapters/adapters.h"
#include "reshard/plan/source/metadata_model.h"
#include "reshard/plan/source/tags.h"
#include "reshard/plan/target/assemble.h"
#include "reshard/plan/target/carried_files.h"
#include "reshard/plan/target/cast_dtypes.h"
#include "reshard/plan/target/checks.h"
#include "reshard/plan/target/config_dtype.h"
#include "reshard/plan/target/dtypes.h"
#include "reshard/plan/target/extra_tensors.h"
#include "reshard/plan/target/outside_links.h"
#include "reshard/specs/config/model_config.h"
#include "reshard/specs/model/language_model.h"
#include "reshard/tensor/cast/cast.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// The tensors that the target shall have, and those of the source that it shall not.
struct Selection {
  std::vector<LogicalTensor> wanted;
  std::vector<std::string> dropped;
};

bool is_dropped(const NameRules& rules, const std::string& name) {
  const auto matches = [&](const NamePattern& pattern) { return pattern.matches(name); };
  if (std::any_of(rules.drop.begin(), rules.drop.end(), matches)) return true;
  return !rules.keep.empty() && std::none_of(rules.keep.begin(), rules.keep.end(), matches);
}

void note_useless_rules(const NameRules& rules, const SourceMap& source, Job& job) {
  const auto check = [&](const char* parameter, const NamePattern& pattern) {
    const bool matches = std::any_of(source.logical.begin(), source.logical.end(),
                                     [&](const LogicalTensor& tensor) { return pattern.matches(tensor.name); });
    if (!matches) job.notes.push_back(fmt::format("{} {} matches no tensor", parameter, printable(pattern.text())));
  };
  for (const NamePattern& pattern : rules.drop) check("`drop`", pattern);
  for (const NamePattern& pattern : rules.keep) check("`keep`", pattern);
}

std::vector<std::string> names_of(const SourceMap& map) {
  std::vector<std::string> names;
  names.reserve(map.logical.size());
  for (const LogicalTensor& tensor : map.logical) names.push_back(tensor.name);
  return names;
}

/// Renames the source's tensors; each rule sees what those before it made. A dropped tensor gets out of the way of one
/// that takes its name.
/// \throws Error kUsage if two that are not dropped would have one name.
void rename(SourceMap& source, const NameRules& rules, const std::vector<bool>& dropped, Job& job) {
  if (rules.renames.empty()) return;
  std::vector<bool> matched(rules.renames.size());
  std::unordered_map<std::string, std::string> old_names;  // of new names
  std::vector<std::string> new_names = names_of(source);
  for (std::size_t i = 0; i < new_names.size(); ++i) {
    if (source.logical[i].filler) continue;
    const std::string old = new_names[i];
    std::string& name = new_names[i];
    for (std::size_t r = 0; r < rules.renames.size(); ++r) {
      const auto& [pattern, replacement] = rules.renames[r];
      if (!pattern.matches(name)) continue;
      matched[r] = true;
      name = pattern.replace(name, replacement);
    }
    if (dropped[i] && name.empty()) name = old;
    if (dropped[i]) continue;
    if (name.empty()) throw Error(ErrorKind::kUsage, "`rename` leaves nothing of its name").tensor(old);
    const auto [found, is_new] = old_names.emplace(name, old);
    if (!is_new)
      throw Error(ErrorKind::kUsage,
                  fmt::format("`rename` gives it and {} the same name, {}", printable(found->second), printable(name)))
          .tensor(old);
  }
  for (std::size_t i = 0; i < new_names.size(); ++i) {
    if (source.logical[i].filler || !dropped[i]) continue;
    while (!old_names.emplace(new_names[i], source.logical[i].name).second) new_names[i] += " (left out)";
  }
  for (std::size_t r = 0; r < matched.size(); ++r)
    if (!matched[r])
      job.notes.push_back(fmt::format("`rename` {} matches no tensor", printable(rules.renames[r].first.text())));
  source.rename_logical(new_names);
}

/// Whether the target contains whole tensors, or chunks of them. For the ranks of a mesh, validated_model compares the
/// tensors with config.json.
bool is_whole(const LayoutTraits& traits) {
  return !traits.has_ranks() || traits.needs_no_mesh();
}

std::string counted(std::size_t tensors) {
  return tensors == 1 ? "1 tensor" : fmt::format("{} tensors", tensors);
}

/// \throws Error kBadInput for tensors of other shapes than config.json says, unless the source is not held against it.
void validate_shapes(const Misfits& misfits, const Checkpoint& checkpoint, Job& job) {
  if (misfits.shapes.empty()) return;
  const auto& [tensor, expected] = misfits.shapes.front();
  const std::string what = fmt::format("has the shape {}, but config.json asks for {}", to_string(tensor->shape),
                                       to_string(expected->shape));
  if (checkpoint.layout != nullptr && checkpoint.layout != &whole_layout())
    throw Error(ErrorKind::kBadInput, what)
        .in(checkpoint.path)
        .tensor(tensor->name)
        .hint("config.json belongs to another model, or the checkpoint is damaged");
  job.notes.push_back(fmt::format("{} of other shapes than config.json asks for, such as {}, which {}",
                                  misfits.shapes.size() == 1 ? "1 tensor is" : counted(misfits.shapes.size()) + " are",
                                  printable(tensor->name), what));
}

/// Compares the tensors that are selected, under their new names, with the model. Notes how many the rules take from it.
/// \param old_names  of all of the source's, before they were renamed.
/// \throws Error kBadInput if others are missing, and the request does not allow that, or if shapes differ; kUsage if the
/// request allows missing tensors in a layout that needs them.
void validate_complete(const Checkpoint& checkpoint, const ConvertRequest& request, const Selection& selection,
                       const std::vector<std::string>& old_names, Job& job) {
  if (!is_whole(request.target.layout->traits())) {
    if (!request.allow_missing) return;
    throw Error(ErrorKind::kUsage, fmt::format("`allow-missing`: layout {} needs every tensor of the model",
                                               request.target.layout->traits().name))
        .hint("it is for layouts " + layout_names([](const Layout& layout) {
                return layout.traits().is_written() && is_whole(layout.traits());
              }));
  }
  const auto note_idle = [&](const char* why) {
    if (request.allow_missing) job.notes.push_back(fmt::format("`allow-missing` has no effect: {}", why));
  };
  if (checkpoint.adapter || !checkpoint.model || checkpoint.model->quantization_problem)
    return note_idle("it is not known which tensors there should be");
  std::unordered_set<std::string_view> names, renamed_away;
  for (std::size_t i = 0; i < old_names.size(); ++i) {
    names.insert(job.source.logical[i].name);
    if (job.source.logical[i].name != old_names[i]) renamed_away.insert(old_names[i]);
  }
  std::optional<Model> renamed;
  if (!request.names.renames.empty() && checkpoint.language_model.family)
    renamed = instantiate(checkpoint.language_model, names);
  SourceMap wanted;
  for (const LogicalTensor& tensor : selection.wanted) wanted.add_logical(tensor, {});
  const Misfits misfits = find_misfits(wanted, renamed ? *renamed : *checkpoint.model);
  validate_shapes(misfits, checkpoint, job);
  // Where training checkpoints are read, it is noted unless names change.
  if (!misfits.unlisted.empty() && request.source.extra == ExtraTensors::kRefuse &&
      (!checkpoint.beside_model || !request.names.empty())) {
    std::vector<std::string> unlisted;
    for (const LogicalTensor* tensor : misfits.unlisted) unlisted.push_back(tensor->name);
    job.notes.push_back("config.json does not explain these tensors: " + list_names(unlisted));
  }
  const std::unordered_set<std::string_view> dropped(selection.dropped.begin(), selection.dropped.end());
  std::vector<std::string> missing;
  std::size_t left_out = 0, other_names = 0;
  for (const std::string& name : misfits.missing) {
    if (dropped.count(name) > 0 || is_dropped(request.names, name))
      ++left_out;
    else if (renamed_away.count(name) > 0)
      ++other_names;
    else
      missing.push_back(name);
  }
  if (left_out > 0)
    job.notes.push_back(fmt::format("`drop` or `keep` leaves out {} that config.json asks for", counted(left_out)));
  if (other_names > 0)
    job.notes.push_back(fmt::format("`rename` gives {} other names than config.json asks for", counted(other_names)));
  if (missing.empty()) return note_idle("no tensor is missing");
  const std::string what = missing.size() == 1
                               ? "1 tensor that config.json asks for is missing"
                               : fmt::format("{} tensors that config.json asks for are missing", missing.size());
  if (const auto peft = std::find_if(misfits.unlisted.begin(), misfits.unlisted.end(),
                                     [](const LogicalTensor* tensor) { return is_of_peft(tensor->name); });
      peft != misfits.unlisted.end() && request.names.empty() && !request.allow_missing)
    throw Error(ErrorKind::kUnsupported, "belongs to a LoRA adapter that is not merged into the weights")
        .in(checkpoint.path)
        .tensor((*peft)->name)
        .hint(kHintForPeft);
  if (request.allow_missing) return job.notes.push_back(fmt::format("{}: {}", what, list_names(missing, SIZE_MAX)));
  throw Error(ErrorKind::kBadInput, fmt::format("{}: {}", what, list_names(missing)))
      .in(checkpoint.path)
      .hint(
          "the checkpoint is incomplete, or config.json belongs to another model; `allow-missing` writes what is "
          "there");
}

/// The elements of all tensors of a state dict.
std::uint64_t elems_of(const std::vector<LogicalTensor>& tensors) {
  std::uint64_t elems = 0;
  for (const LogicalTensor& tensor : tensors)
    if (!tensor.filler) elems += num_elems(tensor.shape).value_or(0);
  return elems;
}

Selection select(SourceMap& source, const ConvertRequest& request, Job& job) {
  note_useless_rules(request.names, source, job);
  std::vector<bool> dropped;
  for (const LogicalTensor& tensor : source.logical) dropped.push_back(is_dropped(request.names, tensor.name));
  rename(source, request.names, dropped, job);
  Selection selection;
  for (std::size_t i = 0; i < source.logical.size(); ++i) {
    const LogicalTensor& tensor = source.logical[i];
    if (tensor.filler) continue;
    if (dropped[i])
      selection.dropped.push_back(tensor.name);
    else
      selection.wanted.push_back(tensor);
  }
  if (selection.wanted.empty()) throw Error(ErrorKind::kUsage, "`drop` and `keep` leave no tensor");
  if (!selection.dropped.empty())
    job.index_metadata = recounted_metadata(job.index_metadata, elems_of(source.logical), elems_of(selection.wanted));
  return selection;
}

/// States follow what name rules have made of their parameters.
/// \param dropped  names of the job's model now. \returns those of the states that are dropped with them.
std::vector<std::string> follow_model(TrainingStates& states, const std::vector<std::string>& old_names, const Job& job,
                                      const std::vector<std::string>& dropped) {
  const std::unordered_set<std::string_view> left_out(dropped.begin(), dropped.end());
  std::unordered_map<std::string_view, std::string_view> new_names;
  for (std::size_t i = 0; i < old_names.size(); ++i) {
    const std::string_view name = job.source.logical[i].name;
    if (left_out.count(name) > 0)
      new_names.emplace(old_names[i], std::string_view());
    else if (name != old_names[i])
      new_names.emplace(old_names[i], name);
  }
  return new_names.empty() ? std::vector<std::string>{} : follow_parameters(states, new_names, job.source_directory);
}

/// Holds the wanted tensors against the model whose shards they shall be.
Model validated_model(const Checkpoint& checkpoint, Selection& selection, const ConvertRequest& request) {
  if (!checkpoint.model)
    throw Error(ErrorKind::kBadInput, "has no config.json of a known family, which says how the parameters are split")
        .in(checkpoint.directory)
        .hint(checkpoint.config.empty() ? "say with `config` where the model's config.json is"
                                        : hint_for_model(checkpoint));
  SourceMap wanted;
  std::unordered_set<std::string_view> names;
  for (const LogicalTensor& tensor : selection.wanted) {
    wanted.add_logical(tensor, {});
    names.insert(tensor.name);
  }
  const bool renamed = !request.names.renames.empty() && checkpoint.language_model.family;
  Model model = renamed ? instantiate(checkpoint.language_model, names) : *checkpoint.model;
  untie_held(model, wanted);
  try {
    validate_against_model(wanted, model, request.source.path, request.source.extra);
  } catch (Error& error) {
    if (request.names.renames.empty() && selection.dropped.empty()) {
      // All that config.json asks for was there when it was read, so that this is more.
      if (checkpoint.layout->traits().needs_no_mesh())
        error.hint(error.hint() + "; what a trainer has besides, such as buffers, `drop` leaves out");
      throw;
    }
    throw error.hint("with `rename`, `drop` and `keep`, what is left must be the model of config.json");
  }
  selection.wanted = std::move(wanted.logical);
  return model;
}

/// Notes options that the source was written with, in the same layout, and the output is not.
void note_other_form(Job& job, const OptionValues& form, const OptionValues& options) {
  std::vector<std::string> lost;
  for (const auto& [name, value] : form.all())
    if (!options.has(name))
      lost.push_back(value == "true" ? fmt::format("`{}`", name) : fmt::format("`{}` {}", name, value));
  if (!lost.empty())
    job.notes.push_back(
        fmt::format("the source was written with {}, and the output is written without: give the same "
                    "options to keep its form",
                    join(lost, " and ")));
}

/// Makes the target; ranks that the request leaves open are the source's.
/// \returns the tensors that its layout has no place for.
std::vector<std::string> plan_converted(Files& files, Checkpoint& checkpoint, Selection& selection,
                                        const ConvertRequest& request, Job& job) {
  TargetRequest target = request.target;
  const LayoutTraits& traits = target.layout->traits();
  if (!traits.has_ranks() || traits.needs_no_mesh())
    for (std::string& name : take_extra_tensors(job, request.source.extra, target,
                                                checkpoint.model ? &*checkpoint.model : nullptr, selection.wanted))
      selection.dropped.push_back(std::move(name));
  if (!traits.has_ranks() || traits.needs_no_mesh()) {
    const Model* model = checkpoint.model ? &*checkpoint.model : nullptr;
    return plan_target(files, job, target, model, selection.wanted, checkpoint.states_or_null());
  }
  const bool from_ranks = checkpoint.has_mesh();
  if (!target.tp && !from_ranks)
    throw Error(ErrorKind::kUsage, "`tp` is required: the number of tensor-parallel ranks");
  if (!target.tp) target.tp = checkpoint.mesh.tp;
  if (!target.pp && target.pipeline_cuts.empty() && from_ranks && traits.has_stages()) target.pp = checkpoint.mesh.pp;
  if (!target.ep && from_ranks && traits.has_experts()) target.ep = checkpoint.mesh.ep;
  Model model = validated_model(checkpoint, selection, request);
  for (std::string& name : take_extra_tensors(job, request.source.extra, target, &model, selection.wanted))
    selection.dropped.push_back(std::move(name));
  if (!request.dtype) take_config_dtype(files, job, *target.layout, checkpoint.config, selection.wanted);
  if (checkpoint.layout == target.layout && !target.format) target.format = checkpoint.format;
  if (checkpoint.layout == target.layout) note_other_form(job, checkpoint.form, target.options);
  return plan_target(files, job, target, &model, selection.wanted, checkpoint.states_or_null());
}

/// Where no layout is asked for, but ranks are, those of a sharded source get another mesh; where the optimizer is to go
/// along, it stays in its layout. The optimizer is not read.
const Layout& layout_of_source(Files& files, const ConvertRequest& request, const fs::path& path) {
  const std::string option = rank_option(request.target);
  SourceRequest without_optimizer = request.source;
  without_optimizer.with_optimizer = false;
  const Checkpoint source = read_checkpoint(files, path, context_of(without_optimizer, ConfigUse::kLenient));
  if (option.empty())
    return source.layout != nullptr && source.layout->traits().writes_states() ? *source.layout : whole_layout();
  if (source.has_mesh() && source.layout->traits().is_written()) return *source.layout;
  throw Error(ErrorKind::kUsage,
              fmt::format("`{}` is about ranks, but layout {} has whole tensors", option, whole_layout().traits().name))
      .hint("say which layout: `to` " + layout_names([](const Layout& layout) {
              return layout.traits().has_ranks() && layout.traits().is_written();
            }));
}

std::unique_ptr<Job> plan(Files& files, ConvertRequest request) {
  const bool is_model_alone = rank_option(request.target).empty() && !request.source.with_optimizer;
  const bool has_layout = request.target.layout != nullptr || is_model_alone;
  if (request.target.layout == nullptr && has_layout) request.target.layout = &whole_layout();
  if (request.source.with_optimizer && request.source.extra == ExtraTensors::kDrop)
    throw Error(ErrorKind::kUsage, "`extra-tensors` drop would leave out tensors whose optimizer states stay")
        .hint("name the tensors with `drop`, which leaves out their states, too");
  const auto validate = [&] {
    validate_request(request.target);
    validate_takes_states(request.source, *request.target.layout);
  };
  request.source.with_optimizer = request.source.with_optimizer || !state_option(request.target).empty();
  if (has_layout) validate();  // before anything is read
  const FoundCheckpoint found = find_checkpoint(files, request.source.path, request.source.tag);
  if (!has_layout) {
    request.target.layout = &layout_of_source(files, request, found.path);
    validate();
  }
  const auto use = request.names.empty() ? ConfigUse::kStrict : ConfigUse::kRenamed;
  Checkpoint checkpoint = read_checkpoint(files, found.path, context_of(request.source, use, request.target.layout));
  if (request.target.options.choice(kExperts) == "separate") separate_experts(checkpoint);
  checkpoint.notes.insert(checkpoint.notes.begin(), found.notes.begin(), found.notes.end());
  if (request.lora_fuse && !checkpoint.adapter)
    throw Error(ErrorKind::kUsage, "`lora-fuse` has no effect: this is no adapter").in(checkpoint.path);
  if (!checkpoint.adapter) take_metadata_model(checkpoint, request.target);
  validate_has_states(request.source, checkpoint);
  validate_names(checkpoint, *request.target.layout);
  auto job = start_job("convert", checkpoint, request.output_directory, request.force);
  validate_has_tensors(job->source, checkpoint);
  job->dtype = request.dtype;
  note_states_left(*job, checkpoint, *request.target.layout);
  validate_outside(files, request.output_directory, checkpoint);
  const std::vector<std::string> old_names = names_of(job->source);
  Selection selection = select(job->source, request, *job);
  validate_complete(checkpoint, request, selection, old_names, *job);
  if (request.dtype)
    cast_tensors(*job, selection.wanted, {*request.dtype, request.cast_all, !request.names.keep.empty()},
                 read_ordered_config(files, checkpoint.config));
  std::vector<std::string> states_dropped;
  if (!checkpoint.states.empty()) states_dropped = follow_model(checkpoint.states, old_names, *job, selection.dropped);
  if (!request.dtype) take_model_dtypes(*job, selection.wanted);
  if (!request.dtype && !request.target.layout->traits().has_ranks() && checkpoint.beside_model)
    note_config_dtype(files, *job, checkpoint, selection.wanted);
  ProgramOptions options;
  if (checkpoint.adapter)
    options.means = plan_converted_adapter(files, *job, checkpoint, selection.wanted, request);
  else
    options.dropped = plan_converted(files, checkpoint, selection, request, *job);
  options.check_replicas = request.check_replicas;
  for (auto* dropped : {&selection.dropped, &states_dropped})
    std::move(dropped->begin(), dropped->end(), std::back_inserter(options.dropped));
  add_states(job->source, std::move(checkpoint.states.map), job->target.same);
  options.partial_target = job->shares_directory;
  job->program = make_program(job->source, job->target, options);
  if (checkpoint.adapter) return job;  // config.json is the base model's
  carry_companions(files, *job, checkpoint, {request.output_directory, checkpoint.path});
  return job;
}

}  // namespace

std::unique_ptr<Job> plan_convert(Files& files, const ConvertRequest& request) {
  std::unique_ptr<Job> job = plan(files, request);
  leave_out_outside_links(files, *job, request.source);
  return job;
}

}  // namespace reshard
