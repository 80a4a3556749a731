// Shards of adapters as targets.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <unordered_map>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/formats/safetensors/hf_index.h"
#include "reshard/layouts/core/config_model.h"
#include "reshard/layouts/hf/hf_files.h"
#include "reshard/layouts/map/whole_map.h"
#include "reshard/layouts/peft/adapter_target.h"
#include "reshard/plan/adapters/adapters.h"
#include "reshard/plan/adapters/peft_adapter.h"
#include "reshard/plan/target/checks.h"
#include "reshard/plan/target/make_target.h"
#include "reshard/plan/transforms/average.h"
#include "reshard/specs/config/model_config.h"
#include "reshard/specs/model/language_model.h"
#include "reshard/specs/peft/adapter_metadata.h"
#include "reshard/specs/stages/stage_json.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

std::string peft_name(const std::string& module) {
  return std::string(kPeftPrefix) + module + ".lora_A.weight";
}

/// The lora_A of fused linears.
std::vector<Average> fused_means(const std::vector<FusedLayer>& layers) {
  std::vector<Average> means;
  for (const FusedLayer& layer : layers) {
    Average& mean = means.emplace_back(Average{peft_name(layer.module), {}});
    for (const std::string& linear : layer.linears) mean.terms.push_back(peft_name(linear));
  }
  return means;
}

/// The tensors that are each all of one stored tensor, because linears are fused.
std::vector<Average> shared_means(const SourceMap& source) {
  std::vector<Average> means;
  std::map<std::pair<std::string, Dims>, std::size_t> mean_of;  // by the stored name and where in it the tensor begins
  for (std::size_t i = 0; i < source.logical.size(); ++i) {
    if (source.logical[i].constant() || source.pieces[i].empty()) continue;
    const Piece& first = source.pieces[i].front();
    const std::string& stored_name = source.stored[first.stored].name;
    const auto [found, is_new] = mean_of.emplace(std::pair(stored_name, first.stored_begin), means.size());
    if (is_new) means.push_back({stored_name, {}});
    means[found->second].terms.push_back(source.logical[i].name);
  }
  std::erase_if(means, [](const Average& mean) { return mean.terms.size() < 2; });
  return means;
}

/// The tensors with the means in the place of what they are made of.
std::vector<LogicalTensor> target_tensors(const std::vector<LogicalTensor>& tensors,
                                          const std::vector<Average>& means) {
  std::unordered_map<std::string_view, const Average*> in_mean;
  for (const Average& mean : means)
    for (const std::string& name : mean.terms) in_mean.emplace(name, &mean);
  std::vector<LogicalTensor> made;
  for (const LogicalTensor& tensor : tensors) {
    const auto mean = in_mean.find(tensor.name);
    if (mean == in_mean.end())
      made.push_back(tensor);
    else if (mean->second->terms.front() == tensor.name)
      made.push_back({mean->second->name, tensor.dtype, tensor.shape, {}});
  }
  return made;
}

void add_prefix(std::vector<Average>& means, const std::string& prefix) {
  for (Average& mean : means) {
    mean.name.insert(0, prefix);
    for (std::string& name : mean.terms) name.insert(0, prefix);
  }
}

/// Adds the shards of adapters of one model to the target of a job.
class AdapterSharder {
 public:
  AdapterSharder(Job& job, const TargetRequest& request, const Model& model, LoraFuse fuse)
      : job_(job), model_(model), format_(format_of(request)), fuse_(fuse) {
    AdapterBase base = plan_adapter_base(request, model);
    job_.mesh = base.mesh.mesh;
    job_.notes.insert(job_.notes.end(), base.mesh.notes.begin(), base.mesh.notes.end());
    job_.partition = std::move(base.mesh.partition);
    job_.cut_names = std::move(base.mesh.cut_names);
    base_ = std::move(base.stages);
    for (const StagePlan& stage : base_)
      for (FusedLayer& layer : fused_layers(stage.metadata)) fused_.push_back(std::move(layer));
  }

  /// \returns the means that the target needs.
  std::vector<Average> add(const std::vector<AdapterSource>& adapters) {
    std::vector<AdapterContent> contents;
    for (const AdapterSource& adapter : adapters) contents.push_back(adapter_content(adapter, model_, fused_));
    stages_ = peft_stages(base_, contents);
    for (std::size_t i = 0; i < adapters.size(); ++i) add(adapters[i], contents[i]);
    return std::move(means_);
  }

 private:
  void add(const AdapterSource& adapter, const AdapterContent& content) {
    std::vector<FusedLayer> layers = fused_;
    std::erase_if(layers, [&](const FusedLayer& layer) { return content.lora.count(layer.module) == 0; });
    add_config(adapter, layers);  // says what is wrong with ranks and scales, too
    auto means = fuse_ == LoraFuse::kMean ? fused_means(layers) : std::vector<Average>{};
    std::vector<std::string> metadata;
    for (const PeftStage& stage : stages_) metadata.push_back(metadata_text(stage.metadata));
    try {
      job_.target.append(adapter_target_map(adapter.name, own_stages(adapter), metadata, job_.mesh.tp,
                                            target_tensors(adapter.tensors, means), format_),
                         adapter.prefix);
    } catch (Error& error) {
      if (error.path().empty()) error.in(adapter.path);
      throw;
    }
    job_.whole_folders.push_back(adapter_folder(adapter.name) / kAdapterShardsFolder);
    add_prefix(means, adapter.prefix);
    std::move(means.begin(), means.end(), std::back_inserter(means_));
  }

  void add_config(const AdapterSource& adapter, const std::vector<FusedLayer>& layers) {
    const fs::path folder = adapter_folder(adapter.name);
    std::string text = fused_config_text(adapter.config, layers, fuse_);
    const bool changed = text != adapter.config.text;
    const fs::path own = folder / (changed ? kUnfusedConfigFile : kAdapterConfigFile);
    if (adapter.config_changed)
      job_.text_files.push_back({own, adapter.config.text, adapter.config.path});
    else
      job_.copied_files.push_back({adapter.config.path, own, adapter.config.text.size()});
    if (changed) job_.text_files.push_back({folder / kAdapterConfigFile, std::move(text), adapter.config.path});
  }

  /// What the adapter's own files hold on each pipeline rank.
  std::vector<StageMetadata> own_stages(const AdapterSource& adapter) const {
    std::vector<StageMetadata> own_stages;
    for (const PeftStage& stage : stages_) {
      StageMetadata own = adapter_metadata(stage.metadata, adapter.name);
      const auto held = stage.files.find(adapter.name);
      std::erase_if(own.parameters, [&](const ParallelParameter& parameter) {
        return held == stage.files.end() || held->second.count(parameter.name) == 0;
      });
      if (fuse_ == LoraFuse::kExact) stack_ranks(own, adapter.config);
      own_stages.push_back(std::move(own));
    }
    return own_stages;
  }

  Job& job_;
  const Model& model_;
  const Format format_;
  const LoraFuse fuse_;
  std::vector<StagePlan> base_;
  std::vector<FusedLayer> fused_;  // of all stages
  std::vector<PeftStage> stages_;
  std::vector<Average> means_;
};

/// \param given  The base model's directory, or its config.json under whatever name.
ModelConfig base_config(Files& files, const fs::path& given) {
  if (files.is_directory(given)) return read_model_config(files, given);
  if (files.is_file(given)) return read_model_config_file(files, given);
  throw Error(ErrorKind::kBadInput, files.exists(given) ? "is not a directory" : "no such directory")
      .in(given)
      .hint("give the base model's directory, or its config.json");
}

/// Only a plan in config.json, which knows no shapes, needs the base model's weights, which lie beside it.
Model base_model(Files& files, const ModelConfig& config, const FamilySpec& family, Job& job) {
  job.family = config.model_type;
  const LanguageModel model = find_language_model(config, family);
  if (model.family) return instantiate(model.family, model.config);
  if (!has_config_plan(config)) throw unknown_model_type(config);
  return planned_model(config, read_hf_checkpoint(files, config.path.parent_path()), job.notes);
}

/// Text files that belong to the target's files come first.
void take_text_files(Job& job) {
  job.text_files.insert(job.text_files.begin(), std::move_iterator(job.target.text_files.begin()),
                        std::move_iterator(job.target.text_files.end()));
  job.target.text_files.clear();
}

void validate_adapter_name(const Checkpoint& source) {
  const std::string& name = source.adapter->name;
  const bool plain = !name.empty() && name.find('/') == std::string::npos &&
                     std::none_of(name.begin(), name.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; });
  if (!plain)
    throw Error(ErrorKind::kBadInput,
                fmt::format("its adapter is called \"{}\", which no folder can be called", printable(name)))
        .in(source.path);
}

/// Shards for the ranks that `source` has, after its own metadata.
std::vector<Average> plan_same_ranks(Files& files, Job& job, const Checkpoint& source,
                                     const std::vector<LogicalTensor>& wanted, const TargetRequest& request,
                                     const NameRules& names) {
  const Adapter& adapter = *source.adapter;
  const bool same = !adapter.stages.empty() && request.tp.value_or(source.mesh.tp) == source.mesh.tp &&
                    request.pp.value_or(source.mesh.pp) == source.mesh.pp && request.vpp == 1 &&
                    request.pipeline_cuts.empty() && request.options.empty();
  if (!same)
    throw Error(ErrorKind::kBadInput, "is an adapter, which does not say how its model is split over ranks")
        .in(source.path)
        .hint("say with `config` where the base model's config.json is");
  if (wanted.size() != job.source.tensor_count() || !names.renames.empty())
    throw Error(ErrorKind::kUsage, "shards of an adapter that keep their partition keep all of its tensors and names")
        .in(source.path)
        .hint("say with `config` where the base model's config.json is, to partition what is left anew");
  std::vector<Average> means = shared_means(job.source);
  job.target = adapter_target_map(adapter.name, adapter.stages, {}, source.mesh.tp, target_tensors(wanted, means),
                                  format_of(request));
  const fs::path folder = adapter_folder(adapter.name);
  for (const DirectoryEntry& entry : files.list(source.path))  // it is about the other adapters, too
    if (const auto pp_rank = metadata_pp_rank(entry.name))
      job.copied_files.push_back({source.path / entry.name,
                                  folder / kAdapterShardsFolder / metadata_file_name(*pp_rank),
                                  files.size_bytes(source.path / entry.name)});
  std::sort(job.copied_files.begin(), job.copied_files.end(),
            [](const CopiedFile& a, const CopiedFile& b) { return a.path < b.path; });
  for (const char* name : {kAdapterConfigFile, kUnfusedConfigFile})
    if (const fs::path config = source.directory / name; files.exists(config))
      job.copied_files.push_back({config, folder / name, files.size_bytes(config)});
  job.whole_folders = {folder / kAdapterShardsFolder};
  return means;
}

/// Shards for ranks of the model that the source's config.json is about.
std::vector<Average> plan_other_ranks(Files& files, Job& job, const Checkpoint& source,
                                      const std::vector<LogicalTensor>& wanted, const Request& request,
                                      TargetRequest target) {
  const Adapter& adapter = *source.adapter;
  if (!target.tp && !source.has_ranks())
    throw Error(ErrorKind::kUsage, "`tp` is required: the number of tensor-parallel ranks");
  if (!target.tp) target.tp = source.mesh.tp;
  if (!target.pp && target.pipeline_cuts.empty() && source.has_ranks()) target.pp = source.mesh.pp;
  if (!files.exists(adapter.config))
    throw Error(ErrorKind::kBadInput, "holds no adapter_config.json, which says the ranks of its linears")
        .in(source.directory);
  const auto changed = separate_config_text(files, adapter, job.notes);
  AdapterSource one{adapter.name, {}, changed.has_value(), source.path, wanted, {}};
  one.config = changed ? parse_adapter_config(*changed, adapter.config) : read_adapter_config(files, adapter.config);
  const Model model = base_model(files, read_model_config_file(files, source.config), request.source.family, job);
  return AdapterSharder(job, target, model, request.lora_fuse.value_or(LoraFuse::kMean)).add({one});
}

/// \throws Error kUsage for options that are about models.
void validate_for_shards(const Request& request) {
  const std::string of_states = request.source.with_optimizer ? "with-optimizer" : state_option(request.target);
  const std::pair<const char*, bool> idle[] = {{of_states.c_str(), !of_states.empty()},
                                               {"tag", request.source.tag.has_value()},
                                               {"allow-missing", request.allow_missing}};
  for (const auto& [option, given] : idle)
    if (given)
      throw Error(ErrorKind::kUsage,
                  fmt::format("`{}` has no effect with `adapter`: only adapters are written", option))
          .hint("leave out one of the two");
  if (!request.source.config.empty())
    throw Error(ErrorKind::kUsage, "`config` has no effect: adapters are sharded by the config.json beside the model")
        .in(request.source.path);
  if (request.dtype)
    throw Error(ErrorKind::kUsage, "`dtype` is about models: convert casts an adapter").in(request.source.path);
  if (!request.names.empty())
    throw Error(ErrorKind::kUsage, "`rename`, `drop` and `keep` are about models: convert renames an adapter's tensors")
        .in(request.source.path);
}

}  // namespace

std::unique_ptr<Job> plan_shard_adapters(Files& files, const Request& request) {
  validate_for_shards(request);
  TargetRequest target = request.target;
  target.layout = &adapter_layout();
  validate_adapter_request(target);  // what is wrong with the request is told before anything is read
  auto job = std::make_unique<Job>();
  job->command = "shard";
  job->layout = target.layout;
  job->options = target.options;
  job->format = format_of(target);
  job->source_directory = job->model_directory = request.adapters.front();
  job->output_directory = request.output_directory.value();
  job->force = request.force;
  if (request.source.extra != ExtraTensors::kRefuse)
    job->notes.emplace_back("`extra-tensors` has no effect on adapters");
  const Model model = base_model(files, base_config(files, request.source.path), request.source.family, *job);
  AdapterSharder sharder(*job, target, model, request.lora_fuse.value_or(LoraFuse::kMean));
  std::vector<AdapterSource> sources;
  for (PeftAdapter& adapter : read_peft_adapters(files, request.adapters)) {
    for (const std::string& warning : adapter.file.warnings)
      job->notes.push_back(adapter.file.path.filename().string() + ": " + warning);
    // Adapters hold tensors of the same names.
    const std::string prefix = adapter.name == kDefaultAdapter ? "" : adapter.name + "/";
    SourceMap map = whole_map({adapter.file});
    sources.push_back({adapter.name, std::move(adapter.config), false, adapter.file.path, map.state_dict(), prefix});
    job->source.append(std::move(map), prefix);
  }
  job->source = average(std::move(job->source), sharder.add(sources));
  job->program = make_program(job->source, job->target);
  take_text_files(*job);
  return job;
}

void plan_converted_adapter(Files& files, Job& job, const Checkpoint& source, const std::vector<LogicalTensor>& wanted,
                            const Request& request) {
  const Layout& layout = *request.target.layout;
  job.layout = &layout;
  job.options = request.target.options;
  job.format = format_of(request.target);
  const bool anew = source.config_given && &layout == &adapter_layout();
  if (request.lora_fuse && !anew)
    throw Error(ErrorKind::kUsage, "`lora-fuse` has no effect: no linears are fused anew").in(source.path);
  if (&layout == &whole_layout()) {
    if (source.config_given)
      throw Error(ErrorKind::kUsage, "`config` has no effect: a whole adapter does not depend on its base model")
          .in(source.path)
          .hint("leave out `config`");
    for (const std::string& option : request.target.options.names())
      throw Error(ErrorKind::kUsage, "`" + option + "` is about models: adapters have one file each").in(source.path);
    note_idle_options(request.source, job);
    add_peft_target(files, job, *source.adapter, wanted, format_of(request.target), {});
    return;
  }
  if (&layout != &adapter_layout())
    throw Error(ErrorKind::kUsage, fmt::format("layout {} has no place for adapters", layout.traits().name))
        .in(source.path)
        .hint(
            fmt::format("layouts for adapters: {}, {}", whole_layout().traits().name, adapter_layout().traits().name));
  validate_adapter_request(request.target);
  validate_adapter_name(source);
  const std::vector<Average> means = anew ? plan_other_ranks(files, job, source, wanted, request, request.target)
                                          : plan_same_ranks(files, job, source, wanted, request.target, request.names);
  job.source = average(std::move(job.source), means);
  take_text_files(job);
}

}  // namespace reshard
