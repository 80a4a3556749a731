#include "reshard/layouts/training/adapter_target.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/pattern.h"
#include "reshard/base/strings.h"
#include "reshard/formats/torch/state_dict.h"
#include "reshard/layouts/map/metadata_rules.h"
#include "reshard/layouts/map/target_file.h"
#include "reshard/layouts/peft/adapter_folders.h"
#include "reshard/layouts/ranks/sharded_map.h"
#include "reshard/specs/family/expression.h"
#include "reshard/specs/peft/adapter_metadata.h"
#include "reshard/specs/peft/peft_stages.h"
#include "reshard/specs/stages/stage_json.h"
#include "reshard/tensor/recipes/mean.h"
#include "reshard/tensor/recipes/same.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMagnitude = "lora_magnitude_vector";  // of DoRA

/// Contents of adapters other than matrices for the model's linears.
struct Other {
  const char* pattern;  // found in the name of a tensor
  const char* what;
  const char* hint;
};
constexpr Other kOthers[] = {
    {R"(\.lora_(A|B)\.[^.]+\.weight$|\.lora_embedding_[AB]\.[^.]+$|\.modules_to_save\.)",
     "contains the name of an adapter, as in a PEFT model's state dict", "save the adapter with save_pretrained"},
    {R"(\.token_adapter\.|\.trainable_tokens)", "belongs to trainable tokens, which are not sharded",
     "merge the adapter into the model (merge_and_unload) and shard that"},
    {R"(^(score|classifier|classification_head|qa_outputs|v_head|summary)\.)",
     "belongs to a head that the adapter adds to the model, which is not sharded",
     "save the adapter without the head, or merge it into the model (merge_and_unload) and shard that"},
    {R"((^|\.)(language_model|text_model|vision_tower|vision_model|visual|multi_modal_projector|connector|thinker)\.)",
     "adapts part of a multimodal model, whose names differ from those of its language model",
     "merge the adapter into the model (merge_and_unload) and shard that"},
};

/// Validates that lora_A and lora_B form pairs: PEFT initialises a missing one without a word.
void validate_pairs(const Adapter& adapter, const std::vector<LogicalTensor>& tensors) {
  std::set<std::string_view> names;
  for (const LogicalTensor& tensor : tensors) names.insert(tensor.name);
  for (const LogicalTensor& tensor : tensors) {
    const auto name = lora_name(tensor.name);
    if (!name || (name->rest != "weight" && !name->rest.empty())) continue;
    for (const auto& [a, b] : {std::pair("lora_A", "lora_B"), {"lora_embedding_A", "lora_embedding_B"}}) {
      if (name->component != a && name->component != b) continue;
      const std::string lost = fmt::format("{}.{}{}", name->module, name->component == a ? b : a,
                                           tensor.name.substr(name->module.size() + 1 + name->component.size()));
      if (names.count(lost) > 0) continue;
      throw Error(ErrorKind::kBadInput, fmt::format("is missing, although the module has a {}", name->component))
          .in(adapter.path)
          .tensor(lost)
          .hint("save the adapter again, or fetch the file again; `drop` and `keep` must treat both alike");
    }
  }
}

/// Validates the shapes of an adapter's tensors against the model and the config's ranks, and groups the tensors by
/// module of the ranks, in which `fused` linears are one module. Either all or none of these linears must be adapted.
/// \throws Error kBadInput or kUnsupported, naming the tensor or the module.
class Sorter {
 public:
  Sorter(const Adapter& adapter, const Model& model, const std::vector<FusedLayer>& fused) : adapter_(adapter) {
    if (const Json* rows = model.config ? find_key(*model.config, "vocab_size") : nullptr; rows != nullptr)
      vocabulary_ = rows->is_number_unsigned() ? rows->get<std::uint64_t>() : 0;
    content_.name = adapter.name;
    for (const ModelParameter& parameter : model.parameters) parameters_.emplace(parameter.name, &parameter);
    for (const FusedLayer& layer : fused)
      for (const std::string& linear : layer.linears) fused_.emplace(linear, &layer);
  }

  AdapterContent run(const std::vector<LogicalTensor>& held) {
    for (const LogicalTensor& tensor : held) sort(tensor);
    validate_pairs(adapter_, held);
    for (const auto& [module, tensors] : own_) validate_fused(module, tensors);
    return std::move(content_);
  }

 private:
  Error error(const LogicalTensor& tensor, ErrorKind kind, const std::string& message) const {
    return Error(kind, message).in(adapter_.path).tensor(tensor.name);
  }

  /// Returns the error for a tensor that belongs to no module of the model: `message`, unless a better one is known.
  Error unknown(const LogicalTensor& tensor, const std::string& name, const std::string& message) const {
    if (!adapter_.config.target_parameters.empty() && name.find(".experts.") != name.npos)
      return error(tensor, ErrorKind::kUnsupported,
                   "adapts experts that are packed in one tensor (target_parameters), which is not supported");
    for (const Other& other : kOthers)
      if (Pattern(other.pattern).found_in(name))
        return error(tensor, ErrorKind::kUnsupported, other.what).hint(other.hint);
    const bool is_own = lora_name(name) && parameters_.count(lora_name(name)->module + ".weight") > 0;
    if (is_own)
      return error(tensor, ErrorKind::kUnsupported, message)
          .hint("merge the adapter into the model (merge_and_unload) and shard that");
    return error(tensor, ErrorKind::kBadInput, message).hint("config.json belongs to another model than the adapter");
  }

  void sort(const LogicalTensor& tensor) {
    if (!tensor.name.starts_with(kPeftPrefix))
      throw error(tensor, ErrorKind::kBadInput, "does not begin with base_model.model., as PEFT names tensors");
    const std::string name = tensor.name.substr(kPeftPrefix.size());
    if (const auto lora = lora_name(name)) return sort_lora(tensor, *lora);
    const std::size_t leaf = std::min(name.rfind('.'), name.size());
    std::string module = name.substr(0, leaf);
    const bool wrapped = module.ends_with(kBaseLayer);
    if (wrapped) module.resize(module.size() - kBaseLayer.size());
    const auto found = parameters_.find(module + name.substr(leaf));
    if (found == parameters_.end()) throw unknown(tensor, name, "is neither an adapter's nor the model's");
    if (fused_.count(module))
      throw error(tensor, ErrorKind::kUnsupported, "is a copy of a linear that is fused with others");
    validate_shape(tensor, found->second->shape, "config.json belongs to another model");
    if (!wrapped && adapter_.config.saves(module))
      content_.saved_modules.insert(module);
    else
      content_.plain.insert(tensor.name);
  }

  void sort_lora(const LogicalTensor& tensor, const LoraName& name) {
    const auto found = parameters_.find(name.module + ".weight");
    if (found == parameters_.end() || found->second->shape.size() != 2)
      throw unknown(tensor, tensor.name.substr(kPeftPrefix.size()), "adapts a module that the model does not have");
    const std::string kind = name.component + (name.rest.empty() ? "" : "." + name.rest);
    const bool transposed = is_transposed(*found->second);
    const std::uint64_t out = found->second->shape[transposed ? 1 : 0];
    const std::uint64_t in = found->second->shape[transposed ? 0 : 1];
    const std::uint64_t r = adapter_.config.rank_of(name.module);
    const bool embedding = found->second->plan == TensorParallelPlan::kEmbeddingRowwise;
    using Shapes = std::map<std::string, Dims>;
    const Shapes shapes =
        embedding
            ? Shapes{{"lora_embedding_A", {r, out}}, {"lora_embedding_B", {in, r}}}
            : Shapes{
                  {"lora_A.weight", {r, in}}, {"lora_B.weight", {out, r}}, {"lora_B.bias", {out}}, {kMagnitude, {out}}};
    const auto expected = shapes.find(kind);
    if (expected == shapes.end())
      throw unknown(tensor, tensor.name.substr(kPeftPrefix.size()),
                    fmt::format("is {}{}, which is not sharded", printable(kind),
                                name.component == kMagnitude ? " of DoRA"
                                : embedding                  ? " of an embedding"
                                                             : ""));
    validate_shape(tensor, expected->second,
                   "config.json belongs to another model, or adapter_config.json declares another rank");
    own_[name.module].insert(kind);
    const auto layer = fused_.find(name.module);
    const std::string& module = layer == fused_.end() ? name.module : layer->second->module;
    content_.lora[module].insert(kind);
    if (transposed) content_.transposed.insert(module);
  }

  void validate_shape(const LogicalTensor& tensor, const Dims& expected, const char* hint) const {
    if (tensor.shape == expected) return;
    validate_vocabulary(tensor, expected);
    throw error(tensor, ErrorKind::kBadInput,
                fmt::format("is {}, but the model and the adapter's config make it {}", to_string(tensor.shape),
                            to_string(expected)))
        .hint(hint);
  }

  /// \throws Error kBadInput if only the size of the vocabulary differs, as after tokens were added.
  void validate_vocabulary(const LogicalTensor& tensor, const Dims& expected) const {
    const auto dim = std::find(expected.begin(), expected.end(), vocabulary_);
    if (dim == expected.end() || tensor.shape.size() != expected.size()) return;
    const std::uint64_t rows = tensor.shape[static_cast<std::size_t>(dim - expected.begin())];
    Dims resized = expected;
    resized[static_cast<std::size_t>(dim - expected.begin())] = rows;
    if (resized != tensor.shape) return;
    throw error(tensor, ErrorKind::kBadInput,
                fmt::format("is for a vocabulary of {} tokens, but vocab_size in config.json is {}: the adapter was "
                            "trained with another vocabulary than its base model's",
                            rows, vocabulary_))
        .hint(
            fmt::format("give a base model with {0} tokens (resize_token_embeddings({0}), saved with its config.json), "
                        "or merge the adapter into such a model (merge_and_unload) and shard that",
                        rows));
  }

  /// Validates that all linears of a fused one are adapted, and in the same way.
  void validate_fused(const std::string& module, const std::set<std::string>& tensors) const {
    const auto layer = fused_.find(module);
    if (layer == fused_.end()) return;
    std::vector<std::string> missing;
    for (const std::string& linear : layer->second->linears) {
      const auto other = own_.find(linear);
      if (other == own_.end())
        missing.push_back(linear);
      else if (other->second != tensors)
        throw Error(ErrorKind::kUnsupported,
                    fmt::format("{} and {} become one linear, but are adapted in different ways", module, linear))
            .in(adapter_.path);
    }
    if (!missing.empty())
      throw Error(ErrorKind::kUnsupported, fmt::format("adapts {}, but not {}, with which it becomes the one linear {}",
                                                       module, list_names(missing), layer->second->module))
          .in(adapter_.path)
          .hint("an adapter must adapt all of them or none");
  }

  const Adapter& adapter_;
  std::uint64_t vocabulary_ = 0;  // vocab_size; 0 if unknown
  std::unordered_map<std::string, const ModelParameter*> parameters_;
  std::unordered_map<std::string, const FusedLayer*> fused_;  // by linear
  std::map<std::string, std::set<std::string>> own_;          // module of the model → tensors
  AdapterContent content_;
};

/// Returns the tensors of each adapter, under the names in its own files.
std::vector<std::vector<LogicalTensor>> tensors_by_adapter(const TargetContext& context) {
  std::map<std::string_view, std::size_t> adapters;  // by prefix
  for (std::size_t i = 0; i < context.adapters.size(); ++i) adapters.emplace(context.adapters[i].prefix, i);
  std::vector<std::vector<LogicalTensor>> tensors(context.adapters.size());
  for (LogicalTensor tensor : context.logical) {
    auto owner = adapters.find(std::string_view(tensor.name).substr(0, tensor.name.find('/') + 1));
    if (owner == adapters.end()) owner = adapters.begin();  // the default adapter, which has no prefix
    tensor.name.erase(0, owner->first.size());
    tensors[owner->second].push_back(std::move(tensor));
  }
  return tensors;
}

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
  const auto [values, modules] = requested_modules(trainer, request.options, *context.model, plan.mesh.tp);
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
    contents.push_back(Sorter(context.adapters[i], *context.model, fused).run(tensors[i]));
    for (const auto& [module, adapted] : contents.back().lora)
      if (modules && modules->has(module + ".weight"))
        throw Error(ErrorKind::kUnsupported,
                    fmt::format("adapts {}, for which the trainer has names of its own; how it stores adapters of "
                                "such a module is unknown",
                                module))
            .in(context.adapters[i].path)
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
