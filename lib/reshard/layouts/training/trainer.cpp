#include "reshard/layouts/training/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "reshard/base/error.h"
#include "reshard/base/paths.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/core/attention_report.h"
#include "reshard/layouts/optimizer/optimizer_groups.h"
#include "reshard/layouts/optimizer/optimizer_target.h"
#include "reshard/layouts/ranks/sharded_map.h"
#include "reshard/layouts/training/adapter_target.h"
#include "reshard/layouts/training/training_notes.h"
#include "reshard/specs/stages/stage_json.h"

namespace reshard {

Mesh mesh_of(const TargetRequest& request) {
  Mesh mesh{request.tp.value_or(1), request.pp.value_or(1), request.vpp, request.ep.value_or(1)};
  validate_mesh(mesh);
  if (request.pp || request.pipeline_cuts.empty()) return mesh;
  const std::size_t stages = request.pipeline_cuts.size() + 1;
  if (stages % mesh.vpp != 0)
    throw Error(ErrorKind::kUsage,
                fmt::format("`pipeline-cuts`: {} cuts make {} stages, which `vpp` {} does not divide",
                            request.pipeline_cuts.size(), stages, mesh.vpp));
  mesh.pp = static_cast<std::uint32_t>(std::min<std::size_t>(stages / mesh.vpp, kMaxParallelDegree + 1));
  validate_mesh(mesh);
  return mesh;
}

void plan_mesh(TargetPlan& plan, const TargetRequest& request, const Model& model) {
  plan.mesh = mesh_of(request);
  if (plan.mesh.vpp > 1 && plan.mesh.pp == 1)
    plan.notes.no_effect("`vpp` has no effect: the only pipeline rank has all stages");
  const std::string& layer_prefix = model.family->layers;
  plan.partition = request.pipeline_cuts.empty()
                       ? partition_evenly(model.layers, plan.mesh)
                       : partition_by_cuts(model.layers, plan.mesh, request.pipeline_cuts, layer_prefix);
  for (const std::uint64_t layer : plan.partition->cuts())
    plan.cut_names.push_back(fmt::format("{}.{}", layer_prefix, layer));
}

namespace {

/// Returns a check that ranks do not share a byte of packed elements.
DegreeProblem shared_byte_problem(const Model& model, std::span<const LogicalTensor> logical) {
  std::unordered_map<std::string_view, const LogicalTensor*> packed;
  for (const LogicalTensor& tensor : logical)
    if (bits(tensor.dtype) % 8 != 0) packed.emplace(tensor.name, &tensor);
  if (packed.empty()) return nullptr;
  return [packed = std::move(packed), &model](std::uint64_t degree) -> std::optional<Error> {
    for (const ModelParameter& parameter : model.parameters) {
      const auto found = packed.find(parameter.name);
      if (found == packed.end() || !parameter.split_dim || split_problem(parameter, degree, false)) continue;
      const LogicalTensor& tensor = *found->second;
      std::uint64_t inner = bits(tensor.dtype);  // bits per element along the split dim
      for (std::size_t d = *parameter.split_dim + 1; d < parameter.shape.size(); ++d) inner *= parameter.shape[d] % 8;
      std::vector<std::uint64_t> sizes{parameter.shape[*parameter.split_dim]};
      for (const PackedPart& part : parameter.packed) sizes.push_back(part.size);
      for (const std::uint64_t size : sizes)
        if (size / degree % 8 * (inner % 8) % 8 != 0)
          return std::move(
              Error(ErrorKind::kUsage, fmt::format("{} ranks would share a packed byte: elements of {} have {} bits",
                                                   degree, name(tensor.dtype), bits(tensor.dtype)))
                  .tensor(tensor.name));
    }
    return std::nullopt;
  };
}

}  // namespace

void validate_split(const Model& model, std::uint64_t tp, const PartitionOptions& options,
                    const PartitionOptions& padded, const LayoutOption* padding, std::span<const LogicalTensor> logical,
                    const DegreeProblem& own) {
  const DegreeProblem shared_byte = shared_byte_problem(model, logical);
  try {
    validate_split(model, tp, options, [&](std::uint64_t degree) {
      auto problem = shared_byte ? shared_byte(degree) : std::nullopt;
      return problem || !own ? problem : own(degree);
    });
  } catch (Error& error) {
    if (padding != nullptr && tensor_parallel_problem(model, tp, options) &&
        !tensor_parallel_problem(model, tp, padded))
      error.hint(fmt::format("`{}` pads sizes that {} ranks do not divide; {}", padding->name, tp, error.hint()));
    throw;
  }
}

HoldsName names_in(std::span<const LogicalTensor> logical) {
  auto held = std::make_shared<std::unordered_set<std::string_view>>();
  held->reserve(logical.size());
  for (const LogicalTensor& tensor : logical) held->insert(tensor.name);
  return [held](const std::string& name) { return held->count(name) > 0; };
}

std::vector<TextFile> metadata_files(const std::filesystem::path& folder, const std::vector<StagePlan>& plans) {
  std::vector<TextFile> files;
  for (std::uint32_t pp_rank = 0; pp_rank < plans.size(); ++pp_rank)
    files.push_back({folder / metadata_file_name(pp_rank), metadata_text(plans[pp_rank].metadata)});
  return files;
}

std::vector<TextFile> marker_files(const std::filesystem::path& folder) {
  return {{folder / kCheckpointMarker, "1"}, {folder / kDoneMarker, "1", {}, true}};
}

std::vector<TextFile> marked_metadata_files(const std::filesystem::path& folder, const std::vector<StagePlan>& plans) {
  std::vector<TextFile> files = metadata_files(folder, plans);
  for (TextFile& marker : marker_files(folder)) files.push_back(std::move(marker));
  return files;
}

namespace {

/// Returns the stored names of attention's projections, without their module.
std::string projection_names(const Family::Attention& names, AttentionForm form) {
  switch (form) {
    case AttentionForm::kSeparate: return fmt::format("{}, {}, {}", names.query, names.key, names.value);
    case AttentionForm::kFused: return names.fused + ".weight";
    case AttentionForm::kGroupedQuery: return fmt::format("{0}.weight_q, {0}.weight_k, {0}.weight_v", names.fused);
    case AttentionForm::kFusedGroupedQuery: return names.fused + ".weight_qkv";
  }
  return {};
}

}  // namespace

void note_attention(const Model& model, const PartitionOptions& options, const std::string& settings,
                    TargetPlan& plan) {
  const AttentionReport& attention = *plan.attention;
  const std::uint32_t tp = plan.mesh.tp;
  if (is_grouped_query(attention.form) && !options.kv_size_multiplier &&
      attention.copies != usual_multiplier(model.kv_heads, tp))
    plan.notes.chosen(fmt::format(
        "`kv-size-multiplier` {}: the fewest replicas of each key/value head that give {} ranks whole heads",
        attention.copies, tp));
  if (!settings.empty())
    plan.notes.hint(fmt::format("attention is stored as {}: the trainer loads it with {}",
                                projection_names(*model.family->attention, attention.form), settings));
}

namespace {

/// Returns the optimizer's groups: the source's, or those of the requested rule.
std::vector<OptimizerGroup> groups_of(const TargetRequest& request, const TargetContext& context, TargetPlan& plan) {
  const std::vector<OptimizerGroup>& own = context.states->groups;
  const auto rule = chosen_group_rule(request.options);
  if (own.empty()) return own;
  if (rule && !context.states->has_names())
    throw Error(ErrorKind::kUsage, "without names, no rule can determine the group of a parameter")
        .hint(
            "leave out `optimizer-groups`, or set `from-optimizer-groups` to the rule by which the source grouped "
            "them");
  if (!rule) {
    if (context.states->grouped_by_values)
      plan.notes.changed(
          fmt::format("the source has hyperparameters per parameter, and parameters with equal ones form one group: {} "
                      "in all; `optimizer-groups` groups them as the training code does",
                      own.size()));
    return own;
  }
  std::vector<OptimizerGroup> groups = regrouped(own, *rule, context.model->family->model_type);
  if (groups.size() != own.size())
    plan.notes.changed(
        fmt::format("the optimizer has {} parameter group{}, but the source has {}: the state of a scheduler, which "
                    "has one learning rate per group, would not fit it",
                    groups.size(), groups.size() == 1 ? "" : "s", own.size()));
  return groups;
}

void add_optimizer(const Layout& layout, TargetPlan& plan, const TargetRequest& request, const TargetContext& context,
                   const std::vector<StagePlan>& stages) {
  if (plan.mesh.ep > 1 && format_of(request) == Format::kXser)
    throw Error(ErrorKind::kUnsupported, fmt::format("how NxD stores states of {} expert-parallel ranks in xser is "
                                                     "unknown",
                                                     plan.mesh.ep))
        .hint("set `ep` 1 or `format` pytorch, or leave out `with-optimizer`");
  const auto dp = request.options.number(kDataParallel);
  plan.mesh.dp = dp ? static_cast<std::uint32_t>(*dp) : context.source_dp.value_or(plan.mesh.ep);
  if (*plan.mesh.dp % plan.mesh.ep != 0)
    throw Error(ErrorKind::kUsage, fmt::format("`dp`: {} data-parallel ranks cannot share {} expert-parallel ranks",
                                               *plan.mesh.dp, plan.mesh.ep))
        .hint("choose a `dp` that `ep` divides");
  const std::filesystem::path shards = rank_path(layout, format_of(request), {}).parent_path().parent_path();
  const std::filesystem::path folder = layout.ranks()->optimizer_in(shards).value();
  const std::vector<OptimizerGroup> groups = groups_of(request, context, plan);
  if (plan.mesh.ep > 1)
    plan.notes.hint(
        "NxD's optimizer of expert-parallel ranks saves no master weights: it is loaded before the model, and updates "
        "the weights that the model has at that time");
  else if (!context.states->has_names() && !has_masters(*context.states))
    plan.notes.missing(
        "as in the source, there are no master weights: NxD loads the optimizer before the model, and updates the "
        "weights that the model has at that time");
  add_optimizer_files(plan, *context.states, stages, {folder, format_of(request), *plan.mesh.dp, plan.mesh.ep, groups});
  if (!lies_inside(folder, layout.traits().folder)) plan.whole_folders.push_back(folder);
  for (TextFile& marker : marker_files(folder.parent_path()))
    if (std::none_of(plan.text_files.begin(), plan.text_files.end(),
                     [&](const TextFile& text) { return text.path == marker.path; }))
      plan.text_files.push_back(std::move(marker));
}

/// Whether ranks share a parameter outside the layers: an embedding or an output matrix.
bool is_outside_and_split(const ModelParameter& parameter) {
  return !parameter.layer && parameter.split_dim.has_value();
}

Model with_whole_embeddings(Model model) {
  for (ModelParameter& parameter : model.parameters)
    if (is_outside_and_split(parameter)) parameter.split_dim.reset();
  return model;
}

/// Applies the attention options in the model's description unless the request overrides them.
PartitionOptions described_options(const Model& model, PartitionOptions options) {
  if (!model.family->attention) return options;
  if (model.family->attention->fuse_qkv)
    options.attention = attention_form_of(is_grouped_query(options.attention), true);
  if (!options.kv_size_multiplier) options.kv_size_multiplier = model.family->attention->kv_size_multiplier;
  return options;
}

}  // namespace

std::string why_fused_linears_idle(const TargetPlan& plan, const Model& model) {
  if (model.family->fused.empty())
    return fmt::format("NxD's model classes fuse no linears of {}", model.family->model_type);
  return plan.map.files.front().encoding == TargetFile::Encoding::kSafetensors ? "in safetensors they are always fused"
                                                                               : "";
}

std::string why_whole_embeddings_idle(const TargetPlan& plan, const Model& model) {
  if (std::none_of(model.parameters.begin(), model.parameters.end(), is_outside_and_split))
    return "every rank has all of the tensors outside the layers anyway";
  return plan.mesh.tp == 1 ? "one rank has all of both anyway" : "";
}

PartitionOptions given_or_kept(const OptionValues& values, const PartitionOptions& source) {
  PartitionOptions options;
  options.attention =
      attention_form_of(is_grouped_query(source.attention), values.flag(kFuseQkv.name) || is_fused(source.attention));
  options.kv_size_multiplier = values.number(kKvSizeMultiplier);
  if (!options.kv_size_multiplier) options.kv_size_multiplier = source.kv_size_multiplier;
  return options;
}

PartitionOptions optimum_options(const OptionValues& values, const PartitionOptions& source) {
  PartitionOptions options = given_or_kept(values, source);
  options.attention = attention_form_of(false, is_fused(options.attention));
  return options;
}

std::string usual_settings(const AttentionReport& attention, std::uint32_t tp) {
  std::vector<std::string> settings;
  const bool grouped = is_grouped_query(attention.form);
  if (grouped && !needs_gqa_qkv(attention.kv_heads, tp)) settings.emplace_back("qkv_linear=True");
  if (is_fused(attention.form)) settings.emplace_back("fuse_qkv=True");
  if (grouped && attention.copies != usual_multiplier(attention.kv_heads, tp))
    settings.push_back(fmt::format("kv_size_multiplier={}", attention.copies));
  return join(settings, ", ");
}

RequestedModules requested_modules(const Trainer& trainer, const OptionValues& values, const Model& model) {
  RequestedModules requested{values, {}};
  if (!trainer.names_modules) return requested;
  const OptionValues form = requested_form(values);
  if (auto scheme = module_scheme(model, form)) {
    for (const std::string& option : scheme->options) requested.values.set(option);
    requested.rules.emplace(model, std::move(scheme), form);
  }
  return requested;
}

void validate_no_inference_scales(const Model& model, const char* layout) {
  if (model.quant_method != inference_scheme().program) return;
  throw Error(ErrorKind::kUnsupported, fmt::format("layout {} has no place for the scales of linears that are "
                                                   "quantised by {}",
                                                   layout, model.quant_method))
      .hint("give the model that was quantised, or choose the layout of NxD Inference");
}

TargetPlan plan_training(const Layout& layout, const Trainer& trainer, const TargetRequest& request,
                         const TargetContext& context) {
  if (!context.adapters.empty()) return plan_adapter_ranks(layout, trainer, request, context);
  const Model& model = *context.model;
  validate_no_inference_scales(model, layout.traits().name);
  TargetPlan plan;
  plan_mesh(plan, request, model);
  if (trainer.validate_model != nullptr) trainer.validate_model(model, plan.mesh.tp, request.options);
  plan.form = request.options;
  const auto [values, modules] = requested_modules(trainer, request.options, model);
  if (modules && modules->names_all() &&
      (model.layers % plan.partition->stages() != 0 || !request.pipeline_cuts.empty()))
    throw Error(ErrorKind::kUsage,
                fmt::format("{} layers over {} stages: with these names, the trainer has as many layers on each stage",
                            model.layers, plan.partition->stages()))
        .hint("choose a `pp` that divides the layers, without `pipeline-cuts`");
  PartitionOptions options = trainer.options_of(values, context.source_partition);
  if (!request.options.has(kKvSizeMultiplier.name) && options.kv_size_multiplier &&
      !multiplier_problem(model.heads, model.kv_heads, plan.mesh.tp, *options.kv_size_multiplier, options.pad_heads)
           .empty())
    options.kv_size_multiplier.reset();  // the source's multiplier, which requires its padding heads
  options.fuse_linears = trainer.fuses_linears == nullptr || trainer.fuses_linears(request, context.source_partition);
  options = described_options(model, options);
  const bool names_attention = modules && modules->has_attention();
  if (names_attention) options = PartitionOptions{.fuse_linears = false};
  PartitionOptions padded = options;
  padded.pad_heads = options.pad_heads || trainer.padding != nullptr;
  std::optional<Model> changed;
  if (modules) changed = modules->without_own_splits();
  if (request.options.flag(kWholeEmbeddings.name)) changed = with_whole_embeddings(changed ? *changed : model);
  const Model& split = changed ? *changed : model;
  const DegreeProblem of_modules = [&, &modules = modules](std::uint64_t tp) -> std::optional<Error> {
    Mesh mesh = plan.mesh;
    mesh.tp = static_cast<std::uint32_t>(tp);
    try {
      modules->rules(mesh);
    } catch (const Error& error) {
      return error;
    }
    return std::nullopt;
  };
  validate_split(split, plan.mesh.tp, options, padded, trainer.padding, context.logical,
                 modules ? of_modules : nullptr);
  const auto stages =
      plan_stages(split, plan.mesh.tp, *plan.partition, options, names_in(context.logical), plan.mesh.ep);
  std::vector<StageRules> rules = stage_rules(stages, plan.mesh.tp, plan.mesh.ep);
  if (modules) modules->replace_in(rules, plan.mesh);
  plan.map = sharded_target_map(rules, plan.mesh.tp, context.logical, {&layout, format_of(request)}, plan.mesh.ep);
  if (model.family->attention)
    plan.attention = attention_report(model, plan.mesh.tp, options);
  else if (modules)
    plan.attention = modules->attention(plan.mesh.tp);
  if (trainer.text_files != nullptr) plan.text_files = trainer.text_files(request, plan, stages);
  if (context.states != nullptr) add_optimizer(layout, plan, request, context, stages);
  if (chooses_attention(model) && !names_attention)
    note_attention(model, options, trainer.attention_settings(*plan.attention, plan.mesh.tp), plan);
  plan.notes.add(partition_notes(model, plan.mesh.tp));
  plan.notes.add(assumed_stage_notes(model, plan.mesh.pp));
  plan.loaded_by = !model.quant_method.empty()
                       ? "only reshard reads these files: trainers have no parameters for quantised weights"
                       : trainer.loaded_by(request, plan, stages);
  return plan;
}

}  // namespace reshard
