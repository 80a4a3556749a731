#include "reshard/layouts/training/adapter_target.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/formats/torch/state_dict.h"
#include "reshard/layouts/map/target_file.h"
#include "reshard/layouts/peft/adapter_content.h"
#include "reshard/layouts/peft/adapter_folders.h"
#include "reshard/layouts/ranks/sharded_map.h"
#include "reshard/layouts/rules/metadata_rules.h"
#include "reshard/specs/peft/adapter_metadata.h"
#include "reshard/specs/peft/peft_stages.h"
#include "reshard/specs/stages/stage_json.h"
#include "reshard/tensor/recipes/mean.h"
#include "reshard/tensor/recipes/same.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Plans PEFT's directories, with one file per adapter.
TargetPlan plan_peft_directories(const TargetRequest& request, const TargetContext& context) {
  TargetPlan plan;
  const Format format = format_of(request);
  const auto tensors = tensors_by_adapter(context);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    validate_pairs(context.adapters[i], tensors[i]);
    const std::string& prefix = context.adapters[i].prefix;
    const auto weights = std::find_if(std::begin(kPeftWeights), std::end(kPeftWeights),
                                      [&](const FormatRow& row) { return row.format == format; });
    TargetContainer container{format, fs::path(prefix) / weights->name};
    for (const LogicalTensor& tensor : tensors[i]) {
      const auto& [name, dtype, shape] = std::tie(tensor.name, tensor.dtype, tensor.shape);
      const std::uint32_t index = plan.map.add_logical({prefix + name, dtype, shape, {}, tensor.role}, {});
      container.tensors.push_back({{name, dtype, shape}, {{index, whole(shape), Dims(shape.size())}}});
    }
    add_target_container(plan.map, std::move(container));
  }
  return plan;
}

/// Contents of one adapter's files on each pipeline rank.
using AdapterStages = std::vector<StageMetadata>;

/// A tensor that several linears share because they are fused.
struct SharedTensor {
  LogicalTensor tensor;            // dtype and shape are those of the first term
  std::vector<std::string> terms;  // names of the linears' own tensors

  /// Returns the tensor as it is made from the terms, whose names all have this prefix.
  LogicalTensor derived(LoraFuse fuse, const std::string& prefix) const {
    Computed computed{fuse == LoraFuse::kSame ? same_recipe() : mean_recipe(), {}};
    for (const std::string& term : terms) computed.inputs.push_back(prefix + term);
    LogicalTensor made = tensor;
    made.name.insert(0, prefix);
    made.computed = std::make_shared<const Computed>(std::move(computed));
    return made;
  }
};

/// Returns the tensors of the ranks that several linears share, in place of whose terms they come in `tensors`.
std::vector<SharedTensor> take_shared(const AdapterStages& stages, std::uint32_t tp,
                                      std::vector<LogicalTensor>& tensors) {
  std::vector<SharedTensor> shared;
  std::unordered_map<std::string, std::size_t> of_term;
  for (const StageMetadata& stage : stages)
    for (const PartitionRule& rule : partition_rules(stage, tp)) {
      if (!rule.one_of_parts) continue;
      SharedTensor& one = shared.emplace_back();
      one.tensor.name = rule.stored_name;
      for (const PartitionRule::Part& part : rule.parts) {
        one.terms.push_back(part.logical_name);
        of_term.emplace(part.logical_name, shared.size() - 1);
      }
    }
  std::vector<LogicalTensor> made;
  for (LogicalTensor& tensor : tensors) {
    const auto found = of_term.find(tensor.name);
    if (found == of_term.end()) {
      made.push_back(std::move(tensor));
    } else if (SharedTensor& one = shared[found->second]; one.terms.front() == tensor.name) {
      one.tensor = {one.tensor.name, tensor.dtype, std::move(tensor.shape), {}};
      made.push_back(one.tensor);
    }
  }
  tensors = std::move(made);
  return shared;
}

/// The ranks of a model that PEFT has wrapped in adapters.
struct WrappedModel {
  std::vector<AdapterStages> own;          // by adapter
  std::vector<SavedValue::Dict> settings;  // by adapter, in each of its files
  std::vector<std::string> metadata;       // text of each pipeline rank's metadata file, for the whole model
};

/// Validates that the adapter consists of matrices, since a trainer that stores settings has no other ones.
void validate_matrices(const Adapter& adapter, const AdapterContent& content) {
  for (const auto& [module, tensors] : content.lora)
    for (const std::string& tensor : tensors)
      if (tensor != "lora_A.weight" && tensor != "lora_B.weight")
        throw Error(ErrorKind::kUnsupported, "has no place in NxD's LoRA, which has one lora_A and lora_B per linear")
            .in(adapter.path)
            .tensor(fmt::format("{}{}.{}", kPeftPrefix, module, tensor))
            .hint("merge the adapter into the model (merge_and_unload) and shard that");
}

/// Removes a prefix that all names have.
void omit_prefix(std::string_view prefix, AdapterStages& stages) {
  for (StageMetadata& stage : stages) {
    for (ParallelParameter& parameter : stage.parameters) parameter.name.erase(0, prefix.size());
    for (ModuleSpecs& module : stage.modules) module.module_fully_qualified_name.erase(0, prefix.size());
  }
}

/// Returns what the files contain besides the tensors of an adapter.
SavedValue::Dict settings_of(const AdapterForm& form, const AdapterContent& content, std::string config,
                             const fs::path& path) {
  std::vector<std::string> modules;
  for (const auto& [module, tensors] : content.lora) modules.push_back(module);
  if (form.settings == nullptr || modules.empty()) return {};
  return {{std::string(kLoraConfigKey),
           {PlainValue{form.settings(parse_adapter_config(std::move(config), path), modules)}}}};
}

/// Splits the adapters in the same way as their base model. Sets the mesh of the plan. Adds a config for each adapter
/// with fused linears, unless its own already has what they need.
WrappedModel wrap_model(const Trainer& trainer, LoraFuse fuse, const TargetRequest& request,
                        const TargetContext& context, const std::vector<std::vector<LogicalTensor>>& tensors,
                        TargetPlan& plan) {
  const AdapterForm& form = *trainer.adapters;
  plan_mesh(plan, request, *context.model);
  if (trainer.validate_model != nullptr) trainer.validate_model(*context.model, plan.mesh.tp, request.options);
  const auto [values, modules] = requested_modules(trainer, request.options, *context.model);
  const PartitionOptions options = trainer.options_of(values, context.source_partition);
  const std::vector<StagePlan> base =
      plan_stages(*context.model, plan.mesh.tp, *plan.partition, options, [](const auto&) { return false; });
  if (form.settings != nullptr && context.model->family->attention) {
    plan.attention = attention_report(*context.model, plan.mesh.tp, options);
    if (chooses_attention(*context.model))
      note_attention(*context.model, options, trainer.attention_settings(*plan.attention, plan.mesh.tp), plan);
  }
  std::vector<FusedLayer> fused;
  for (const StagePlan& stage : base)
    for (FusedLayer& layer : fused_layers(stage.metadata)) fused.push_back(std::move(layer));
  std::vector<AdapterContent> contents;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Adapter& adapter = context.adapters[i];
    contents.push_back(adapter_content(adapter, *context.model, fused, tensors[i]));
    for (const auto& [module, adapted] : contents.back().lora)
      if (modules && modules->has(module + ".weight"))
        throw Error(ErrorKind::kUnsupported,
                    fmt::format("adapts {}, for which the trainer has names of its own; how it stores adapters of "
                                "such a module is unknown",
                                module))
            .in(adapter.path)
            .hint("merge the adapter into the model (merge_and_unload) and shard that");
  }
  const std::vector<PeftStage> stages = peft_stages(base, contents);
  std::vector<AdapterMetadata> metadata;  // by stage
  for (const PeftStage& stage : stages) metadata.emplace_back(stage.metadata);
  WrappedModel wrapped;
  if (form.settings == nullptr)
    for (const PeftStage& stage : stages) wrapped.metadata.push_back(metadata_text(stage.metadata));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, config] = std::tie(context.adapters[i].name, context.adapters[i].config);
    std::vector<FusedLayer> layers = fused;
    std::erase_if(layers, [&](const FusedLayer& layer) { return contents[i].lora.count(layer.module) == 0; });
    std::string text = fused_config_text(config, layers, fuse);
    wrapped.settings.push_back(settings_of(form, contents[i], text, config.path));
    if (form.settings != nullptr)
      validate_matrices(context.adapters[i], contents[i]);
    else if (text != config.text)
      plan.text_files.push_back({adapter_folder(name) / kAdapterConfigFile, std::move(text), config.path});
    AdapterStages& own_stages = wrapped.own.emplace_back();
    for (std::size_t s = 0; s < stages.size(); ++s) {
      StageMetadata& own = own_stages.emplace_back(metadata[s].of(name));
      const auto held = stages[s].files.find(name);
      std::erase_if(own.parameters, [&](const ParallelParameter& parameter) {
        return held == stages[s].files.end() || held->second.count(parameter.name) == 0;
      });
      if (fuse == LoraFuse::kExact) stack_ranks(own, config);
    }
    omit_prefix(form.omitted, own_stages);
  }
  return wrapped;
}

void validate_folder_name(const Adapter& adapter) {
  const std::string& name = adapter.name;
  if (!name.empty() && name.find('/') == std::string::npos && !has_control(name)) return;
  throw Error(ErrorKind::kBadInput,
              fmt::format("its adapter is named \"{}\", which is not a valid folder name", printable(name)))
      .in(adapter.path);
}

/// Plans the rank files of one adapter, with metadata and markers, in its folder.
/// \param metadata  text of each pipeline rank's metadata file; empty if the plan has no such files.
TargetMap adapter_map(const fs::path& folder, const AdapterStages& stages, const std::vector<std::string>& metadata,
                      std::uint32_t tp, std::span<const LogicalTensor> logical, const RankTarget& target) {
  std::vector<StagePlan> plans;
  for (const StageMetadata& stage : stages) plans.push_back({stage, {}});
  TargetMap map = sharded_target_map(plans, tp, logical, target);
  for (std::size_t i = 0; i < map.logical.size(); ++i)
    if (map.pieces[i].empty())
      throw Error(ErrorKind::kUnsupported, "has no place in the ranks of this model").tensor(map.logical[i].name);
  const fs::path shards = rank_path(*target.layout, target.format, {}).parent_path().parent_path();
  const auto move = [&](fs::path& path) { path = folder / path.lexically_relative(shards); };
  for (TargetFile& file : map.files) move(file.path);
  for (TextFile& file : marked_metadata_files(shards, plans)) {
    const auto pp_rank = metadata_pp_rank(file.path.filename().string());
    if (pp_rank && metadata.empty()) continue;
    if (pp_rank) file.text = metadata[*pp_rank];
    map.text_files.push_back(std::move(file));
  }
  for (TextFile& file : map.text_files) move(file.path);
  return map;
}

/// Removes the prefix that files omit from the names of an adapter's tensors.
std::vector<LogicalTensor> without_prefix(std::vector<LogicalTensor> tensors, std::string_view omitted) {
  for (LogicalTensor& tensor : tensors) tensor.name.erase(0, omitted.size());
  return tensors;
}

}  // namespace

void validate_adapter_request(const TargetRequest& request) {
  if (request.format == Format::kSafetensors)
    throw Error(ErrorKind::kUsage, "sharded adapters do not support `format` safetensors")
        .hint("choose pytorch or xser");
  mesh_of(request);
  if (request.ep.value_or(1) != 1)
    throw Error(ErrorKind::kUsage, "`ep`: adapters are not distributed over expert-parallel ranks");
}

TargetPlan plan_adapters(const TargetRequest& request, const TargetContext& context) {
  return request.layout->traits().has_ranks() ? request.layout->plan(request, context)
                                              : plan_peft_directories(request, context);
}

TargetPlan plan_adapter_ranks(const Layout& layout, const Trainer& trainer, const TargetRequest& request,
                              const TargetContext& context) {
  validate_adapter_request(request);
  const AdapterForm& form = *trainer.adapters;
  const LoraFuse fuse = request.lora_fuse.value_or(form.fuse);
  TargetPlan plan;
  const auto tensors = tensors_by_adapter(context);
  WrappedModel model;
  if (context.model != nullptr) {
    model = wrap_model(trainer, fuse, request, context, tensors, plan);
  } else {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      validate_pairs(context.adapters[i], tensors[i]);
      model.own.push_back(context.adapters[i].stages);
    }
    model.settings.resize(tensors.size());
    plan.mesh = {*request.tp, static_cast<std::uint32_t>(model.own.front().size())};
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Adapter& adapter = context.adapters[i];
    validate_folder_name(adapter);
    const fs::path folder = form.folder(adapter.name);
    if (std::find(plan.whole_folders.begin(), plan.whole_folders.end(), folder) != plan.whole_folders.end())
      throw Error(ErrorKind::kBadInput, fmt::format("would be in {}, like another adapter", folder.string()))
          .in(adapter.path)
          .hint("rename its directory");
    plan.whole_folders.push_back(folder);
    std::vector<LogicalTensor> own = without_prefix(tensors[i], form.omitted);
    const std::vector<SharedTensor> shared = take_shared(model.own[i], plan.mesh.tp, own);
    RankTarget target{&layout, format_of(request)};
    target.values = model.settings[i];
    const std::string prefix = adapter.prefix + std::string(form.omitted);
    try {
      plan.map.append(adapter_map(folder, model.own[i], model.metadata, plan.mesh.tp, own, target), prefix);
    } catch (Error& error) {
      if (error.path().empty()) error.in(adapter.path);
      throw;
    }
    for (const SharedTensor& one : shared) plan.derived.push_back(one.derived(fuse, prefix));
  }
  plan.loaded_by = form.loaded_by;
  return plan;
}

void validate_beside_adapters(Files& files, const TargetPlan& plan, const fs::path& output_directory) {
  for (const TargetFile& file : plan.map.files) {
    const std::string name = file.path.filename().string();
    if (!is_peft_weights_name(name)) continue;
    for (const FormatRow& weights : kPeftWeights) {
      const fs::path other = output_directory / file.path.parent_path() / weights.name;
      if (weights.name != name && files.exists(other))
        throw Error(ErrorKind::kBadInput,
                    "belongs to another adapter, would not be replaced, and could be loaded instead of the new file")
            .in(other)
            .hint("move it away or choose another output directory");
    }
  }
}

}  // namespace reshard
