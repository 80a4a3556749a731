#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/paths.h"
#include "reshard/base/strings.h"
#include "reshard/io/text_file.h"
#include "reshard/layouts/hf.h"
#include "reshard/layouts/other_stages.h"
#include "reshard/layouts/sharded_checkpoint.h"
#include "reshard/layouts/sharded_map.h"
#include "reshard/layouts/target_file.h"
#include "reshard/plan/adapter_proofs.h"
#include "reshard/plan/adapters.h"
#include "reshard/plan/stacked_adapters.h"
#include "reshard/specs/adapter_metadata.h"
#include "reshard/specs/fused_adapter_config.h"
#include "reshard/specs/metadata.h"
#include "reshard/specs/model_config.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// The name that the metadata knows the adapter by: that of its folder, or the only one there is.
std::string name_in_metadata(Files& files, const AdapterFolder& adapter) {
  std::set<std::string> names;
  for (const DirectoryEntry& entry : files.list(adapter.shards.path)) {
    if (!metadata_pp_rank(entry.name)) continue;
    const fs::path path = adapter.shards.path / entry.name;
    if (path.extension() != ".json")
      throw Error(ErrorKind::kUnsupported,
                  "is metadata of an older version, which does not say how adapters are joined")
          .in(path);
    for (const std::string& name : adapter_names(read_metadata(files, path))) names.insert(name);
  }
  if (names.count(adapter.name)) return adapter.name;
  if (names.size() == 1) return *names.begin();
  if (names.empty())
    throw Error(ErrorKind::kBadInput,
                "has no metadata that speaks of adapters (mp_metadata_pp_rank_Y.json), so nothing says how the "
                "parameters are laid out")
        .in(adapter.shards.path);
  throw Error(ErrorKind::kBadInput,
              fmt::format("the folder is that of the adapter \"{}\", but the metadata knows {}",
                          printable(adapter.name), list_names(std::vector(names.begin(), names.end()))))
      .in(adapter.shards.path)
      .hint("call the folder adapter_NAME, as it was saved");
}

/// The joined linears that the files hold adapters of.
std::vector<FusedLayer> held_layers(const ShardedCheckpoint& checkpoint) {
  std::vector<FusedLayer> layers;
  for (std::uint32_t pp_rank = 0; pp_rank < checkpoint.pp; ++pp_rank) {
    std::unordered_set<std::string> held;
    for (const TensorEntry& tensor : checkpoint.files[pp_rank].front().tensors) held.insert(tensor.name);
    for (FusedLayer& layer : fused_layers(checkpoint.metadata[pp_rank]))
      if (held.count(std::string(kPeftPrefix) + layer.module + ".lora_A.weight")) layers.push_back(std::move(layer));
  }
  return layers;
}

/// How the linears of an adapter were joined when `unfused` became the adapter_config.json that is there now; nothing
/// if it did not.
std::optional<LoraFuse> fuse_between(Files& files, const AdapterConfig& unfused, const fs::path& config,
                                     const std::vector<FusedLayer>& layers) {
  const Json there = read_json_file(files, config, kMaxConfigBytes, JsonDialect::kPython);
  for (const LoraFuse fuse : {LoraFuse::kExact, LoraFuse::kMean}) {
    try {
      const Json fused = parse_json(fused_config_text(unfused, layers, fuse), config, JsonDialect::kPython);
      if (fused == there || json_text(fused) == json_text(there)) return fuse;  // a NaN is the same as text alone
    } catch (const Error&) {  // these ranks cannot be joined in this way
    }
  }
  return std::nullopt;
}

/// The modules that the adapter has. `fused` are the linears that its config gives ranks and scales of.
std::vector<AdaptedModule> adapted_modules(const TensorMap& source, const std::vector<FusedLayer>& fused) {
  std::unordered_map<std::string_view, const std::string*> fused_of;
  for (const FusedLayer& layer : fused)
    for (const std::string& linear : layer.linears) fused_of.emplace(linear, &layer.module);
  std::vector<AdaptedModule> modules;
  for (const LogicalTensor& tensor : source.logical) {
    const auto name = lora_name(tensor.name);
    if (!name || tensor.filler || tensor.shape.empty()) continue;
    if (!(name->component == "lora_A" && name->rest == "weight") && name->component != "lora_embedding_A") continue;
    AdaptedModule module;
    module.name = name->module.substr(name->module.starts_with(kPeftPrefix) ? kPeftPrefix.size() : 0);
    const auto found = fused_of.find(module.name);
    module.trained_as = found == fused_of.end() ? module.name : *found->second;
    module.r = tensor.shape[0];
    modules.push_back(std::move(module));
  }
  return modules;
}

void prove_folder_name(const AdapterFolder& adapter) {
  if (!adapter.name.empty() && adapter.name != "." && adapter.name != "..") return;
  throw Error(ErrorKind::kBadInput, "is not called adapter_NAME with a name that a folder can have")
      .in(adapter.shards.directory);
}

class AdapterPlanner {
 public:
  AdapterPlanner(Files& files, const ConsolidateRequest& request, const std::vector<AdapterFolder>& adapters)
      : files_(files), request_(request), adapters_(adapters), job_(std::make_unique<Job>()) {}

  std::unique_ptr<Job> plan() {
    const bool single = adapters_.front().alone;
    job_->command = "consolidate";
    job_->layout = &whole_layout();
    job_->source_directory = single ? adapters_.front().shards.path : request_.source.path;
    job_->model_directory = single ? adapters_.front().shards.directory : request_.source.path;
    job_->output_directory = request_.output_directory.value_or(job_->model_directory);
    job_->force = request_.force;
    for (const AdapterFolder& adapter : adapters_) {
      if (!single) prove_folder_name(adapter);
      add(adapter, single || adapter.name == kDefaultAdapter ? fs::path() : fs::path(adapter.name));
    }
    ProgramOptions options;
    options.check_replicas = request_.check_replicas;
    job_->program = make_program(job_->source, job_->target, options);
    return std::move(job_);
  }

 private:
  void add(const AdapterFolder& adapter, const fs::path& folder) {
    prove_place(folder);
    ShardedCheckpoint checkpoint = read_sharded_checkpoint(files_, adapter.shards, name_in_metadata(files_, adapter));
    prove_adapter_explained(checkpoint);
    const std::vector<FusedLayer> fused = held_layers(checkpoint);
    const fs::path config = config_of(adapter, checkpoint, fused);
    TensorMap source = sharded_source_map(checkpoint, {});
    prove_adapter_sizes(source, adapter.shards.path);
    if (job_->source.files.empty()) job_->mesh = {checkpoint.tp, checkpoint.pp, 1};
    add_notes(checkpoint);
    // Adapters hold tensors of the same names: all but the one that goes to the top are told apart by their folder.
    const std::string prefix = folder.empty() ? "" : folder.string() + "/";
    add_target(source, folder, prefix);
    const bool trained_fused = config.filename() == kAdapterConfigFile;
    add_config(config, folder, adapted_modules(source, trained_fused ? fused : std::vector<FusedLayer>()));
    job_->source.append(std::move(source), prefix);
  }

  /// The adapter_config.json to carry along. Where fused linears had been given entries in it, it is the one from
  /// before; where their lora_A are stacked, the metadata comes to say so. After training the entries count.
  fs::path config_of(const AdapterFolder& adapter, ShardedCheckpoint& checkpoint,
                     const std::vector<FusedLayer>& fused) {
    const fs::path config = adapter.shards.directory / kAdapterConfigFile;
    const fs::path before = adapter.shards.directory / kUnfusedConfigFile;
    if (!files_.exists(config) || !files_.exists(before)) return config;
    const AdapterConfig unfused = read_adapter_config(files_, before);
    if (read_adapter_config(files_, config).text == unfused.text) return config;  // joined anew, without entries
    const auto fuse = fuse_between(files_, unfused, config, fused);
    if (!fuse) {
      job_->notes.push_back(before.string() + " does not belong to the adapter_config.json beside it and is not used");
      return config;
    }
    if (*fuse == LoraFuse::kMean) return before;
    std::vector<StageMetadata> stacked = checkpoint.metadata;
    for (StageMetadata& metadata : stacked) stack_ranks(metadata, unfused);
    if (!holds_stacked(files_, checkpoint, stacked)) {
      job_->notes.push_back(
          fmt::format("adapter {} was trained after --lora-fuse exact: its lora_B is no longer block-diagonal, so "
                      "separate linears keep the rank of the fused ones",
                      printable(adapter.name.empty() ? kDefaultAdapter : adapter.name)));
      return config;
    }
    checkpoint.metadata = std::move(stacked);
    return before;
  }

  void prove_place(const fs::path& folder) const {
    for (const AdapterFolder& other : adapters_)
      if (lies_inside(files_.resolve(job_->output_directory / folder / "."), files_.resolve(other.shards.path)))
        throw Error(ErrorKind::kUsage, "the output directory is inside the shards folder")
            .in(job_->output_directory / folder)
            .hint("choose another OUT_DIR");
    // PEFT takes safetensors where both are there.
    const bool pytorch = format_ == Format::kPytorch;
    const fs::path other = job_->output_directory / folder / (pytorch ? kAdapterSafetensorsFile : kAdapterPytorchFile);
    if (files_.exists(other))
      throw Error(ErrorKind::kBadInput,
                  "is of another adapter, would not be replaced, and loaders would mix it up with the new file")
          .in(other)
          .hint("move it away or choose another OUT_DIR");
  }

  void add_target(const TensorMap& source, const fs::path& folder, const std::string& prefix) {
    TargetContainer container;
    container.format = format_;
    container.path = folder / (format_ == Format::kPytorch ? kAdapterPytorchFile : kAdapterSafetensorsFile);
    for (const LogicalTensor& tensor : source.logical)
      if (!tensor.filler) {
        container.tensors.push_back({tensor.name, tensor.dtype, tensor.shape});
        job_->target.add_logical({prefix + tensor.name, tensor.dtype, tensor.shape}, {});
      }
    for (const std::uint32_t stored : add_target_container(job_->target, std::move(container))) {
      const std::string name = prefix + job_->target.stored[stored].name.text();
      job_->target.add_whole(stored, name);
    }
  }

  void add_config(const fs::path& config, const fs::path& folder, const std::vector<AdaptedModule>& modules) {
    const fs::path final = folder / kAdapterConfigFile;
    if (!files_.exists(config)) {
      job_->notes.push_back("there is no adapter_config.json in " + config.parent_path().string() +
                            ", without which PEFT does not load the adapter");
      return;
    }
    const std::optional<std::string> separate = separate_text(config, modules);
    const bool in_place =
        files_.resolve(config.parent_path() / kAdapterConfigFile) == files_.resolve(job_->output_directory / final);
    if (in_place && (separate || config.filename() != kAdapterConfigFile))
      throw Error(ErrorKind::kUsage,
                  "says how the shards beside it are to be read, and that of the separate linears would replace it")
          .in(job_->output_directory / final)
          .hint("choose another OUT_DIR");
    if (separate)
      job_->text_files.push_back({final, *separate, config});
    else if (!in_place)
      job_->copied_files.push_back({config, final, files_.size_bytes(config)});
  }

  /// What the config says once it names the separate linears in place of the fused ones; nothing where it stays as it
  /// is.
  std::optional<std::string> separate_text(const fs::path& path, const std::vector<AdaptedModule>& modules) {
    try {
      const AdapterConfig config = read_adapter_config(files_, path);
      SeparateConfig separate = separate_config(config, modules);
      if (!separate.unexplained.empty())
        job_->notes.push_back(fmt::format(
            "adapter_config.json gives another rank than lora_A has: {}. It is not the one that the adapter "
            "was trained with, so the scale is unknown, and PEFT does not load the adapter: set "
            "\"rank_pattern\" and \"alpha_pattern\"",
            list_names(separate.unexplained)));
      if (separate.text == config.text) return std::nullopt;
      job_->notes.push_back(
          "adapter_config.json names the separate linears where it named the fused ones, with the same scales");
      return std::move(separate.text);
    } catch (const Error& error) {
      job_->notes.push_back(error.what());
      return std::nullopt;
    }
  }

  void add_notes(const ShardedCheckpoint& checkpoint) {
    for (const std::string& warning : checkpoint.warnings) job_->notes.push_back(warning);
    if (const auto note = other_stages_note(checkpoint)) job_->notes.push_back(*note);
    std::vector<std::string> lost = checkpoint.not_saved;  // most are the base model's, which are never there
    std::erase_if(lost, [](const std::string& name) { return !lora_name(name); });
    if (!lost.empty())
      job_->notes.push_back(fmt::format(
          "{} that the metadata lists for the adapter {} not in the files and left out: {}",
          lost.size() == 1 ? "a parameter" : "parameters", lost.size() == 1 ? "is" : "are", list_names(lost)));
  }

  Files& files_;
  const ConsolidateRequest& request_;
  const Format format_ = request_.target.format.value_or(Format::kSafetensors);
  const std::vector<AdapterFolder>& adapters_;
  std::unique_ptr<Job> job_;
};

}  // namespace

std::vector<AdapterFolder> adapters_to_consolidate(Files& files, const fs::path& path) {
  std::vector<AdapterFolder> adapters = find_adapter_folders(files, path);
  if (adapters.empty()) return adapters;
  const auto shards = find_shards(files, path);
  const bool model = shards && std::none_of(adapters.begin(), adapters.end(), [&](const AdapterFolder& adapter) {
                       return adapter.shards.path == shards->path;
                     });
  if (model) adapters.clear();
  return adapters;
}

void note_adapters_left(Files& files, Job& job, const fs::path& directory) {
  std::vector<std::string> folders;
  for (const AdapterFolder& adapter : find_adapter_folders(files, directory))
    folders.push_back(adapter.shards.directory.filename().string());
  if (!folders.empty())
    job.notes.push_back(
        fmt::format("the model is consolidated, the adapters beside it are not: {}; give {} to consolidate one",
                    list_names(folders), (directory / folders.front()).string()));
}

std::unique_ptr<Job> plan_consolidate_adapters(Files& files, const ConsolidateRequest& request,
                                               const std::vector<AdapterFolder>& adapters) {
  return AdapterPlanner(files, request, adapters).plan();
}

}  // namespace reshard
