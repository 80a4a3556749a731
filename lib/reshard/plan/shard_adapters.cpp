#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/formats/hf_index.h"
#include "reshard/layouts/hf.h"
#include "reshard/layouts/lower_metadata.h"
#include "reshard/layouts/planned_model.h"
#include "reshard/layouts/sharded_checkpoint.h"
#include "reshard/layouts/sharded_map.h"
#include "reshard/layouts/training_layout.h"
#include "reshard/plan/adapters.h"
#include "reshard/plan/target.h"
#include "reshard/specs/adapter_metadata.h"
#include "reshard/specs/fused_adapter_config.h"
#include "reshard/specs/metadata.h"
#include "reshard/specs/model_config.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLoraA = ".lora_A.weight";

std::string peft_name(const std::string& module) {
  return std::string(kPeftPrefix) + module + kLoraA;
}

/// Whether two tensors of a file hold the same bytes. Reads them.
bool same_bytes(Files& files, const Container& container, const TensorEntry& a, const TensorEntry& b) {
  constexpr std::uint64_t kPart = std::uint64_t{1} << 20;
  if (a.dtype != b.dtype || a.shape != b.shape || !a.strides.empty() || !b.strides.empty()) return false;
  const auto file_a = files.open(container.files[a.file].path);
  const auto file_b = files.open(container.files[b.file].path);
  std::vector<std::byte> part_a, part_b;
  for (std::uint64_t at = 0; at < a.size_bytes; at += kPart) {
    part_a.resize(std::min(kPart, a.size_bytes - at));
    part_b.resize(part_a.size());
    file_a->read_at(a.offset_bytes + at, part_a);
    file_b->read_at(b.offset_bytes + at, part_b);
    if (part_a != part_b) return false;
  }
  return true;
}

/// What becomes of the lora_A of joined linears.
struct FusePlan {
  std::vector<Mean> means;
  std::unordered_map<std::string, std::string> equal_to;  // original → the joined one, which it is to the byte
  std::vector<std::string> lossy;                         // modules
};

class AdapterSharder {
 public:
  AdapterSharder(Files& files, const ShardRequest& request)
      : files_(files), request_(request), job_(std::make_unique<Job>()) {}

  std::unique_ptr<Job> plan() {
    TargetRequest target = request_.target;
    target.layout = &layout_;
    mesh_of(target);  // what is wrong with the request is told before anything is read
    const ModelConfig config = read_model_config(files_, config_directory());
    const Model model = model_of(config);
    job_->command = "shard";
    job_->source_directory = job_->model_directory = request_.adapters.front();
    job_->output_directory = request_.output_directory;
    job_->force = request_.force;
    job_->family = config.model_type;
    if (target.ep.value_or(1) != 1)
      throw Error(ErrorKind::kUsage, "--ep: adapters are not spread over expert-parallel ranks");
    validate_request(target);
    job_->layout = &layout_;
    TargetPlan mesh;
    plan_mesh(mesh, target, model);
    job_->mesh = mesh.mesh;
    job_->partition = mesh.partition;
    job_->cut_names = mesh.cut_names;
    const auto base = plan_stages(model, job_->mesh.tp, *job_->partition, layout_.options_of(target.options),
                                  [](const std::string&) { return false; });
    for (const StagePlan& stage : base)
      for (FusedLayer& layer : fused_layers(stage.metadata)) joined_.push_back(std::move(layer));
    const std::vector<PeftAdapter> adapters = read_peft_adapters(files_, request_.adapters);
    for (const PeftAdapter& adapter : adapters) contents_.push_back(adapter_content(adapter, model, joined_));
    stages_ = peft_stages(base, contents_);
    for (std::size_t i = 0; i < adapters.size(); ++i) add(adapters[i], contents_[i]);
    ProgramOptions options;
    options.means = std::move(means_);
    job_->program = make_program(job_->source, job_->target, options);
    job_->text_files.insert(job_->text_files.begin(), std::move_iterator(job_->target.text_files.begin()),
                            std::move_iterator(job_->target.text_files.end()));
    job_->target.text_files.clear();
    return std::move(job_);
  }

 private:
  fs::path config_directory() const {
    const fs::path& given = request_.source.path;
    if (files_.is_directory(given)) return given;
    if (files_.is_file(given) && given.filename() == kConfigFile)
      return given.has_parent_path() ? given.parent_path() : fs::path(".");
    throw Error(ErrorKind::kBadInput, files_.exists(given) ? "is not a directory" : "no such directory")
        .in(given)
        .hint("give the base model's directory, or its config.json");
  }

  /// Only a plan in config.json, which knows no shapes, needs the base model's weights.
  Model model_of(const ModelConfig& config) {
    if (request_.source.family) return instantiate(request_.source.family, config);
    if (builtin_family(config.model_type) == nullptr && has_config_plan(config))
      return planned_model(config, read_hf_checkpoint(files_, config_directory()), job_->notes);
    return instantiate(find_family(config), config);
  }

  void add(const PeftAdapter& adapter, const AdapterContent& content) {
    for (const std::string& warning : adapter.file.warnings)
      job_->notes.push_back(adapter.file.path.filename().string() + ": " + warning);
    std::vector<FusedLayer> layers = joined_;
    std::erase_if(layers, [&](const FusedLayer& layer) { return content.lora.count(layer.module) == 0; });
    const fs::path folder = std::string(kAdapterFolderPrefix) + adapter.name;
    add_config(adapter, layers, folder);  // says what is wrong with ranks and scales, too
    const FusePlan fuse = request_.lora_fuse == LoraFuse::kMean ? plan_means(adapter, layers) : FusePlan{};

    const std::vector<StagePlan> plans = own_plans(adapter);
    prove_placed(adapter, plans);
    TensorMap source = source_layout(adapter.file, fuse);
    TensorMap target = sharded_target_map(plans, job_->mesh.tp, target_tensors(source, fuse),
                                          {&layout_, request_.target.format.value_or(Format::kPytorch)});
    for (TextFile& file : layout_.stage_files(plans)) target.text_files.push_back(std::move(file));
    relocate(target, folder / kAdapterShardsFolder);
    // Adapters hold tensors of the same names.
    const std::string prefix = adapter.name == kDefaultAdapter ? "" : adapter.name + "/";
    for (Mean mean : fuse.means) {
      mean.target.insert(0, prefix);
      for (std::string& name : mean.sources) name.insert(0, prefix);
      means_.push_back(std::move(mean));
    }
    note_losses(adapter, fuse.lossy);
    job_->source.append(std::move(source), prefix);
    job_->target.append(std::move(target), prefix);
    job_->whole_folders.push_back(folder / kAdapterShardsFolder);
  }

  void add_config(const PeftAdapter& adapter, const std::vector<FusedLayer>& layers, const fs::path& folder) {
    std::string text = fused_config_text(adapter.config, layers, request_.lora_fuse);
    const bool changed = text != adapter.config.text;
    job_->copied_files.push_back({adapter.config.path, folder / (changed ? kUnfusedConfigFile : kAdapterConfigFile),
                                  adapter.config.text.size()});
    if (changed) job_->text_files.push_back({folder / kAdapterConfigFile, std::move(text), adapter.config.path});
  }

  FusePlan plan_means(const PeftAdapter& adapter, const std::vector<FusedLayer>& layers) const {
    std::unordered_map<std::string, const TensorEntry*> held;
    for (const TensorEntry& tensor : adapter.file.tensors) held.emplace(tensor.name, &tensor);
    FusePlan fuse;
    for (const FusedLayer& layer : layers) {
      Mean mean{peft_name(layer.module), {}};
      for (const std::string& linear : layer.linears) mean.sources.push_back(peft_name(linear));
      const TensorEntry& first = *held.at(mean.sources.front());
      const bool equal = std::all_of(mean.sources.begin() + 1, mean.sources.end(), [&](const std::string& name) {
        return same_bytes(files_, adapter.file, first, *held.at(name));
      });
      if (equal) {
        for (const std::string& name : mean.sources) fuse.equal_to.emplace(name, mean.target);
      } else {
        fuse.means.push_back(std::move(mean));
        fuse.lossy.push_back(layer.module);
      }
    }
    return fuse;
  }

  /// What the adapter's own files hold on each pipeline rank.
  std::vector<StagePlan> own_plans(const PeftAdapter& adapter) const {
    std::vector<StagePlan> plans;
    for (const PeftStage& stage : stages_) {
      StageMetadata own = adapter_metadata(stage.metadata, adapter.name);
      const auto held = stage.files.find(adapter.name);
      std::erase_if(own.parameters, [&](const ParallelParameter& parameter) {
        return held == stage.files.end() || held->second.count(parameter.name) == 0;
      });
      if (request_.lora_fuse == LoraFuse::kExact) stack_ranks(own, adapter.config);
      plans.push_back({std::move(own), {}});
    }
    return plans;
  }

  /// Every tensor of the adapter's file has its place on some rank.
  void prove_placed(const PeftAdapter& adapter, const std::vector<StagePlan>& plans) const {
    std::unordered_set<std::string> placed;
    for (const StagePlan& plan : plans)
      for (const PartitionRule& rule : partition_rules(plan.metadata, job_->mesh.tp))
        for (const PartitionRule::Part& part : rule.parts) placed.insert(part.logical_name);
    for (const TensorEntry& tensor : adapter.file.tensors)
      if (!placed.count(tensor.name))
        throw Error(ErrorKind::kUnsupported, "has no place in the ranks of this model")
            .in(adapter.file.path)
            .tensor(tensor.name);
  }

  static TensorMap source_layout(const Container& file, const FusePlan& fuse) {
    TensorMap map;
    const std::uint32_t first_file = map.add_files(file, {});
    for (const TensorEntry& tensor : file.tensors) {
      const auto equal = fuse.equal_to.find(tensor.name);
      const std::string name = equal == fuse.equal_to.end() ? tensor.name : equal->second;
      map.add_whole(map.add_stored(tensor, first_file), name);
    }
    return map;
  }

  static std::vector<LogicalTensor> target_tensors(const TensorMap& source, const FusePlan& fuse) {
    std::unordered_map<std::string, const Mean*> in_mean;
    for (const Mean& mean : fuse.means)
      for (const std::string& name : mean.sources) in_mean.emplace(name, &mean);
    std::vector<LogicalTensor> tensors;
    for (const LogicalTensor& tensor : source.logical) {
      const auto mean = in_mean.find(tensor.name);
      if (mean == in_mean.end())
        tensors.push_back(tensor);
      else if (mean->second->sources.front() == tensor.name)
        tensors.push_back({mean->second->target, tensor.dtype, tensor.shape});
    }
    return tensors;
  }

  /// Puts a target of the layout into the adapter's folder; its metadata becomes that of the whole model.
  void relocate(TensorMap& target, const fs::path& folder) const {
    const auto move = [&](fs::path& path) { path = folder / path.lexically_relative(layout_.traits().folder); };
    for (TensorFile& file : target.files) move(file.path);
    for (TextFile& file : target.text_files) {
      if (const auto pp_rank = metadata_pp_rank(file.path.filename().string()))
        file.text = metadata_text(stages_[*pp_rank].metadata);
      move(file.path);
    }
  }

  void note_losses(const PeftAdapter& adapter, const std::vector<std::string>& lossy) {
    if (lossy.empty()) return;
    job_->notes.push_back(
        fmt::format("adapter {}: {} joined linear{} lora_A that differ, and {} their mean, which changes the adapter "
                    "(--lora-fuse exact keeps it): {}",
                    printable(adapter.name), lossy.size(), lossy.size() == 1 ? " has" : "s have",
                    lossy.size() == 1 ? "gets" : "get", list_names(lossy)));
  }

  Files& files_;
  const ShardRequest& request_;
  const TrainingLayout& layout_ = static_cast<const TrainingLayout&>(adapter_layout());
  std::unique_ptr<Job> job_;
  std::vector<FusedLayer> joined_;  // of all stages
  std::vector<AdapterContent> contents_;
  std::vector<PeftStage> stages_;
  std::vector<Mean> means_;
};

}  // namespace

std::unique_ptr<Job> plan_shard_adapters(Files& files, const ShardRequest& request) {
  if (request.target.format == Format::kSafetensors)
    throw Error(ErrorKind::kUsage, "sharded adapters have no safetensors form").hint("choose pytorch or xser");
  return AdapterSharder(files, request).plan();
}

}  // namespace reshard
