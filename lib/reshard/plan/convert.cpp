#include "reshard/plan/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/formats/hf_index.h"
#include "reshard/layouts/expert_stacks.h"
#include "reshard/layouts/hf.h"
#include "reshard/layouts/misfits.h"
#include "reshard/layouts/tied_tensors.h"
#include "reshard/layouts/whole_map.h"
#include "reshard/plan/adapters.h"
#include "reshard/plan/cast_dtypes.h"
#include "reshard/plan/config_dtype.h"
#include "reshard/plan/extra_tensors.h"
#include "reshard/plan/metadata_model.h"
#include "reshard/plan/outside_links.h"
#include "reshard/plan/tags.h"
#include "reshard/plan/target.h"
#include "reshard/specs/language_model.h"
#include "reshard/specs/model_config.h"
#include "reshard/tensor/cast.h"

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

void note_useless_rules(const NameRules& rules, const TensorMap& source, Job& job) {
  const auto check = [&](const char* parameter, const NamePattern& pattern) {
    const bool matches = std::any_of(source.logical.begin(), source.logical.end(),
                                     [&](const LogicalTensor& tensor) { return pattern.matches(tensor.name); });
    if (!matches) job.notes.push_back(fmt::format("{} {} matches no tensor", parameter, printable(pattern.text())));
  };
  for (const NamePattern& pattern : rules.drop) check("`drop`", pattern);
  for (const NamePattern& pattern : rules.keep) check("`keep`", pattern);
}

/// Renames the source's tensors; each rule sees what those before it made.
/// \throws Error kUsage if two would have one name.
void rename(TensorMap& source, const NameRules& rules, Job& job) {
  if (rules.renames.empty()) return;
  std::vector<bool> matched(rules.renames.size());
  std::unordered_map<std::string, std::string> old_names;
  std::vector<std::string> new_names;
  for (const LogicalTensor& tensor : source.logical) {
    std::string name = tensor.name;
    if (tensor.filler) {
      new_names.push_back(std::move(name));
      continue;
    }
    for (std::size_t r = 0; r < rules.renames.size(); ++r) {
      const auto& [pattern, replacement] = rules.renames[r];
      if (!pattern.matches(name)) continue;
      matched[r] = true;
      name = pattern.replace(name, replacement);
    }
    if (name.empty()) throw Error(ErrorKind::kUsage, "`rename` leaves nothing of its name").tensor(tensor.name);
    const auto [found, is_new] = old_names.emplace(name, tensor.name);
    if (!is_new)
      throw Error(ErrorKind::kUsage,
                  fmt::format("`rename` gives it and {} the same name, {}", printable(found->second), printable(name)))
          .tensor(tensor.name);
    new_names.push_back(std::move(name));
  }
  for (std::size_t r = 0; r < matched.size(); ++r)
    if (!matched[r])
      job.notes.push_back(fmt::format("`rename` {} matches no tensor", printable(rules.renames[r].first.text())));
  source.rename_logical(new_names);
}

/// Whether the target contains whole tensors, or chunks of them. For the ranks of a mesh, validated_model compares the
/// tensors with config.json.
bool is_whole(const LayoutTraits& traits) {
  return !traits.has_ranks || traits.needs_no_mesh;
}

/// Returns the tensors that config.json asks for and that the source lacks, also under the names that the rules give
/// its tensors. Notes how many tensors the rules drop. Empty if the model's tensors are not known.
/// \throws Error kUsage if the request allows missing tensors in a layout that needs them.
std::vector<std::string> missing_tensors(const Checkpoint& checkpoint, const ConvertRequest& request, Job& job) {
  if (!is_whole(request.target.layout->traits())) {
    if (request.allow_missing)
      throw Error(ErrorKind::kUsage, fmt::format("`allow-missing`: layout {} needs every tensor of the model",
                                                 request.target.layout->traits().name))
          .hint("it is for layouts " + layout_names([](const Layout& layout) {
                  return layout.traits().is_written() && is_whole(layout.traits());
                }));
    return {};
  }
  if (checkpoint.adapter || !checkpoint.model || checkpoint.model->quantization_problem) return {};
  std::vector<std::string> missing = find_misfits(job.source, *checkpoint.model).missing;
  std::erase_if(missing, [&](const std::string& name) { return is_dropped(request.names, name); });
  const std::vector<ModelParameter>& parameters = checkpoint.model->parameters;
  const auto dropped = std::count_if(parameters.begin(), parameters.end(), [&](const ModelParameter& parameter) {
    return !parameter.optional && job.source.find_logical(parameter.name) && is_dropped(request.names, parameter.name);
  });
  if (dropped > 0)
    job.notes.push_back(fmt::format("`drop` or `keep` leaves out {} that config.json asks for",
                                    dropped == 1 ? std::string("1 tensor") : fmt::format("{} tensors", dropped)));
  if (request.names.renames.empty() || !checkpoint.language_model.family) return missing;
  TensorMap renamed = job.source;
  Job unused;
  rename(renamed, request.names, unused);
  std::unordered_set<std::string_view> names;
  for (const LogicalTensor& tensor : renamed.logical) names.insert(tensor.name);
  std::vector<std::string> still = find_misfits(renamed, instantiate(checkpoint.language_model, names)).missing;
  if (still.size() < missing.size()) return still;
  if (const std::size_t lost = still.size() - missing.size(); lost > 0)
    job.notes.push_back(fmt::format("`rename` gives {} other names than config.json asks for",
                                    lost == 1 ? std::string("1 tensor") : fmt::format("{} tensors", lost)));
  return missing;
}

/// \throws Error kBadInput if tensors are missing and the request does not allow it.
void validate_complete(const Checkpoint& checkpoint, const ConvertRequest& request, Job& job) {
  const std::vector<std::string> missing = missing_tensors(checkpoint, request, job);
  if (missing.empty()) return;
  const std::string what = missing.size() == 1
                               ? "1 tensor that config.json asks for is missing"
                               : fmt::format("{} tensors that config.json asks for are missing", missing.size());
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

Selection select(TensorMap& source, const ConvertRequest& request, Job& job) {
  note_useless_rules(request.names, source, job);
  std::vector<bool> dropped;
  for (const LogicalTensor& tensor : source.logical) dropped.push_back(is_dropped(request.names, tensor.name));
  rename(source, request.names, job);
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

std::vector<std::string> names_of(const TensorMap& map) {
  std::vector<std::string> names;
  names.reserve(map.logical.size());
  for (const LogicalTensor& tensor : map.logical) names.push_back(tensor.name);
  return names;
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
  TensorMap wanted;
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
      if (checkpoint.layout->traits().needs_no_mesh)
        error.hint(error.hint() + "; what a trainer has besides, such as buffers, `drop` leaves out");
      throw;
    }
    throw error.hint("with `rename`, `drop` and `keep`, what is left must be the model of config.json");
  }
  selection.wanted = std::move(wanted.logical);
  return model;
}

/// Makes the target; ranks that the request leaves open are the source's.
/// \returns the tensors that its layout has no place for.
std::vector<std::string> plan_converted(Files& files, Checkpoint& checkpoint, Selection& selection,
                                        const ConvertRequest& request, Job& job) {
  TargetRequest target = request.target;
  const LayoutTraits& traits = target.layout->traits();
  if (!traits.has_ranks || traits.needs_no_mesh)
    for (std::string& name : take_extra_tensors(job, request.source.extra, target,
                                                checkpoint.model ? &*checkpoint.model : nullptr, selection.wanted))
      selection.dropped.push_back(std::move(name));
  if (!traits.has_ranks || traits.needs_no_mesh) {
    const Model* model = checkpoint.model ? &*checkpoint.model : nullptr;
    return plan_target(files, job, target, model, selection.wanted, checkpoint.states_or_null());
  }
  const bool from_ranks = checkpoint.has_mesh();
  if (!target.tp && !from_ranks)
    throw Error(ErrorKind::kUsage, "`tp` is required: the number of tensor-parallel ranks");
  if (!target.tp) target.tp = checkpoint.mesh.tp;
  if (!target.pp && target.pipeline_cuts.empty() && from_ranks && traits.has_stages) target.pp = checkpoint.mesh.pp;
  if (!target.ep && from_ranks && traits.has_experts) target.ep = checkpoint.mesh.ep;
  Model model = validated_model(checkpoint, selection, request);
  for (std::string& name : take_extra_tensors(job, request.source.extra, target, &model, selection.wanted))
    selection.dropped.push_back(std::move(name));
  if (!request.dtype) take_config_dtype(files, job, *target.layout, checkpoint.config, selection.wanted);
  if (checkpoint.layout == target.layout && !target.format) target.format = checkpoint.format;
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
    return source.layout != nullptr && source.layout->traits().writes_states ? *source.layout : whole_layout();
  if (source.has_mesh() && source.layout->traits().is_written()) return *source.layout;
  throw Error(ErrorKind::kUsage,
              fmt::format("`{}` is about ranks, but layout {} has whole tensors", option, whole_layout().traits().name))
      .hint("say which layout: `to` " + layout_names([](const Layout& layout) {
              return layout.traits().has_ranks && layout.traits().is_written();
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
  Checkpoint checkpoint =
      read_checkpoint(files, found.path, context_of(request.source, use, request.target.layout));
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
  OrderedJson config = request.dtype ? read_ordered_config(files, checkpoint.config) : OrderedJson();
  const std::vector<std::string> old_names =
      checkpoint.states.empty() ? std::vector<std::string>{} : names_of(job->source);
  validate_complete(checkpoint, request, *job);
  Selection selection = select(job->source, request, *job);
  if (request.dtype)
    cast_tensors(*job, selection.wanted, {*request.dtype, request.cast_all, !request.names.keep.empty()}, config);
  std::vector<std::string> states_dropped = follow_model(checkpoint.states, old_names, *job, selection.dropped);
  if (!request.dtype) take_model_dtypes(*job, selection.wanted);
  if (!request.dtype && !request.target.layout->traits().has_ranks && checkpoint.beside_model)
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
  if (request.dtype) write_config_dtype(files, *job, checkpoint.config, std::move(config), *request.dtype);
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
