#include "reshard/plan/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string_view>
#include <unordered_set>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/formats/hf_index.h"
#include "reshard/formats/read_container.h"
#include "reshard/io/storage.h"
#include "reshard/layouts/deployed_rules.h"
#include "reshard/layouts/hf_layout.h"
#include "reshard/layouts/other_stages.h"
#include "reshard/layouts/planned_model.h"
#include "reshard/layouts/sharded_layout.h"
#include "reshard/plan/adapters.h"
#include "reshard/specs/metadata.h"
#include "reshard/specs/model_config.h"
#include "reshard/specs/stage_plan.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

void order_naturally(TensorMap& map) {
  std::vector<std::string> names;
  for (const LogicalTensor& tensor : map.logical) names.push_back(tensor.name);
  std::sort(names.begin(), names.end(), natural_less);
  map.order_logical(names);
}

/// The family that a checkpoint is of, if anybody knows it.
FamilySpec family_of(const ModelConfig& config, const FamilySpec& spec) {
  return spec ? spec : FamilySpec(std::shared_ptr<const void>(), builtin_family(config.model_type));
}

/// The model of a checkpoint whose config.json says by itself how it is split. What to know of it joins `notes`.
using PlannedModel = std::function<Model(const ModelConfig& config, std::vector<std::string>& notes)>;

/// Sets the config.json of `checkpoint`, whose directory is known.
void find_config(Checkpoint& checkpoint, const ConfigChoice& choice) {
  const fs::path own = checkpoint.directory / kConfigFile;
  const bool has_own = path_exists(own);
  checkpoint.config_given = !choice.path.empty() && !(choice.where_missing && has_own);
  if (checkpoint.config_given)
    checkpoint.config = fs::is_directory(choice.path) ? choice.path / kConfigFile : choice.path;
  else if (has_own)
    checkpoint.config = own;
  if (checkpoint.config_given && !path_exists(checkpoint.config))
    throw Error(ErrorKind::kBadInput,
                fs::is_directory(choice.path) ? "holds no config.json" : "no such file or directory")
        .in(choice.path)
        .hint("--config takes the model's config.json, or the directory that holds it");
}

/// Reads the model of its config.json, if there is one and its family is known, or `planned` can make it.
/// `names` are those of the weights' tensors.
void read_model(Checkpoint& checkpoint, ConfigUse use, const FamilySpec& spec,
                const std::unordered_set<std::string_view>& names, const PlannedModel& planned) {
  if (use != ConfigUse::kNeeded && checkpoint.config.empty()) {
    if (use == ConfigUse::kStrict && checkpoint.what == Checkpoint::What::kSharded)
      checkpoint.notes.push_back(
          "there is no config.json in " + checkpoint.directory.string() +
          ", so whether the checkpoint has every tensor of its model is not known; --config names one "
          "that is elsewhere");
    return;
  }
  try {
    const ModelConfig config =
        checkpoint.config.empty() ? read_model_config(checkpoint.directory) : read_model_config_file(checkpoint.config);
    checkpoint.model_type = config.model_type;
    FamilySpec family = family_of(config, spec);
    if (!family && has_config_plan(config)) {
      checkpoint.model = planned(config, checkpoint.notes);
      return;
    }
    if (!family) {
      if (use == ConfigUse::kStrict && checkpoint.what == Checkpoint::What::kSharded)
        checkpoint.notes.push_back(
            fmt::format("the model_type \"{}\" is not known, so the metadata alone says what the tensors are",
                        printable(config.model_type)));
      return;
    }
    if (spec && spec->model_type != config.model_type)
      checkpoint.notes.push_back(fmt::format("--spec describes the model_type \"{}\", but {} says \"{}\"",
                                             printable(spec->model_type), config.path.string(),
                                             printable(config.model_type)));
    const auto has_prefix = [&](std::string_view name) { return name.starts_with(family->base_prefix); };
    if (!family->base_prefix.empty() && std::none_of(names.begin(), names.end(), has_prefix))
      family = std::make_shared<const Family>(without_base_prefix(*family));
    checkpoint.model =
        instantiate(std::move(family), config, [&](const std::string& name) { return names.count(name) > 0; });
  } catch (Error& error) {
    if (spec) error.hint("--spec and config.json have to fit: one of the two names a key that the other does not have");
    if (use != ConfigUse::kLenient || checkpoint.config_given) throw;
    checkpoint.notes.push_back(error.what());
  }
}

void add_names(const Container& file, std::unordered_set<std::string_view>& names) {
  for (const TensorEntry& tensor : file.tensors) names.insert(tensor.name);
}

void order(Checkpoint& checkpoint) {
  if (!checkpoint.model) {
    if (checkpoint.what == Checkpoint::What::kSharded) order_naturally(checkpoint.map);
    return;
  }
  std::vector<std::string> names;
  for (const ModelParameter& parameter : checkpoint.model->parameters) names.push_back(parameter.name);
  checkpoint.map.order_logical(names);
}

void note_warnings(const Container& file, std::vector<std::string>& notes) {
  for (const std::string& warning : file.warnings) notes.push_back(file.path.filename().string() + ": " + warning);
}

/// The attention specs of the metadata are about the heads that config.json says. Their sizes alone would not show it:
/// twice the heads of half the size fit the same files in another order.
void prove_heads(const ShardedCheckpoint& checkpoint, const Model& model) {
  if (checkpoint.metadata.empty()) return;
  for (std::uint32_t pp_rank = 0; pp_rank < checkpoint.pp; ++pp_rank)
    for (const ModuleSpecs& module : checkpoint.metadata[pp_rank].modules)
      for (const TransformationSpec& spec : module.specs) {
        const auto* gqa = std::get_if<GQAQKVColumnParallelLinearSpec>(&spec);
        if (gqa == nullptr || (gqa->num_attention_heads == model.heads && gqa->num_key_value_heads == model.kv_heads))
          continue;
        throw Error(
            ErrorKind::kBadInput,
            fmt::format("the attention spec of {} is for {} query and {} key/value heads, but config.json says {} "
                        "and {}",
                        printable(module.module_fully_qualified_name), gqa->num_attention_heads,
                        gqa->num_key_value_heads, model.heads, model.kv_heads))
            .in(checkpoint.folder.path / metadata_file_name(pp_rank));
      }
}

void note_left_out(const ShardedCheckpoint& shards, Checkpoint& checkpoint) {
  if (shards.not_saved.empty()) return;
  const bool one = shards.not_saved.size() == 1;
  checkpoint.notes.push_back(fmt::format("{} that the metadata lists {} not in the files and left out: {}",
                                         one ? "a parameter" : "parameters", one ? "is" : "are",
                                         list_names(shards.not_saved)));
}

/// Of weights for inference whose tensors have other names, or more elements, than the checkpoint's. \returns false for
/// others.
bool derive_rules(ShardedCheckpoint& shards, Checkpoint& checkpoint) {
  const Model& model = *checkpoint.model;
  std::vector<std::string> names;
  for (const TensorEntry& tensor : shards.files.front().front().tensors) names.push_back(tensor.name);
  const auto form = nxdi_form(names);
  const bool filled_up =
      std::any_of(model.parameters.begin(), model.parameters.end(), [&](const ModelParameter& parameter) {
        return can_fill_up(model, parameter) && split_problem(parameter, shards.tp, false).has_value();
      });
  if (!form && !filled_up) return false;
  AttentionOptions options;
  options.apart = options.fill_up = true;
  if (const auto problem = tensor_parallel_problem(model, shards.tp, options))
    throw Error(ErrorKind::kBadInput, fmt::format("{} ranks cannot have the model that config.json describes: {}",
                                                  shards.tp, problem->what()))
        .in(checkpoint.path)
        .hint("config.json belongs to another model, or the last ranks are missing");
  const std::unordered_set<std::string_view> held(names.begin(), names.end());
  shards.rules = deployed_rules(model, shards.tp, form.value_or(DeployedForm{}),
                                [&](const std::string& name) { return held.count(name) > 0; });
  if (form) checkpoint.shards_kind = ShardsKind::kNxdi;
  return true;
}

/// What to try where there is no model to read shards by.
std::string hint_for_model(const Checkpoint& checkpoint) {
  if (!checkpoint.model_type.empty())
    return fmt::format("{} has the model_type \"{}\", which is not known: describe the model with --spec FILE",
                       checkpoint.config.string(), printable(checkpoint.model_type));
  return "copy the model's config.json into " + checkpoint.directory.string() + ", or say with --config where it is";
}

/// Shards without metadata are read by the model.
/// \throws Error kBadInput if there is none.
void explain(ShardedCheckpoint& shards, Checkpoint& checkpoint, const AttentionOptions& heads) {
  const bool deployed = describe(shards.folder.kind).deployed;
  if (!checkpoint.model)
    throw Error(
        ErrorKind::kBadInput,
        "has no metadata files (mp_metadata_pp_rank_Y.json), and without a config.json of a known family beside "
        "it nothing says how the parameters are laid out")
        .in(checkpoint.path)
        .hint(hint_for_model(checkpoint));
  if (!deployed)  // which never has any
    checkpoint.notes.push_back(
        "there are no metadata files, so how the parameters are laid out is told from config.json");
  if (deployed && derive_rules(shards, checkpoint)) return;
  if (deployed && checkpoint.model->by_config_plan && !shards.record)
    checkpoint.notes.push_back(
        "the files do not say how large their tensors were: what was filled up stays, as a plan in config.json knows "
        "no sizes");
  derive_metadata(shards, *checkpoint.model, heads);
  if (shards.folder.kind == ShardsKind::kOptimum) checkpoint.shards_kind = ShardsKind::kNxd;
}

/// What to try where copies differ, and nothing but copies says how the shards are laid out.
std::string hint_for_copies(const Checkpoint& checkpoint) {
  if (checkpoint.shards_kind == ShardsKind::kNxd)
    return "there is no metadata, and the ranks are not laid out as was thought: files of ranks that were swapped, of "
           "two checkpoints, or another placement of heads (--kv-replication, --kv-size-multiplier, --pad-attn-heads; "
           "of convert's SRC with --from- before them)?";
  return "as there is no metadata, replicas alone prove the layout, and --replicas first has no effect: files of ranks "
         "were swapped or come from different checkpoints, or config.json belongs to another model";
}

/// Options for heads that were given for a checkpoint of another layout than nxd.
void note_idle_heads(Checkpoint& checkpoint, const AttentionOptions& heads) {
  std::vector<std::string> options;
  if (heads.replication != KvReplication::kTiled) options.push_back("the order of repeated key/value heads");
  if (heads.kv_size_multiplier) options.push_back("their number");
  if (heads.pad_heads) options.push_back("padding heads");
  if (!options.empty())
    checkpoint.notes.push_back("the options for " + join(options, ", ") + " have no effect on " +
                               checkpoint.path.string() + ": they are for shards in the layout nxd, without metadata");
}

Checkpoint read_shards(const ShardsFolder& folder, ConfigUse use, const FamilySpec& spec, const AttentionOptions& heads,
                       const ConfigChoice& config_choice) {
  Checkpoint checkpoint;
  checkpoint.what = Checkpoint::What::kSharded;
  checkpoint.shards_kind = folder.kind;
  checkpoint.path = folder.path;
  checkpoint.directory = folder.parent;
  find_config(checkpoint, config_choice);
  ShardedCheckpoint shards = read_sharded_checkpoint(folder);
  checkpoint.format = shards.format;
  checkpoint.mesh = {shards.tp, shards.pp, 1, shards.ep};
  checkpoint.notes = shards.warnings;
  std::unordered_set<std::string_view> names;
  for (const auto& ranks : shards.files)
    for (std::size_t i = 0; i < ranks.size(); i += shards.tp) add_names(ranks[i], names);
  read_model(checkpoint, use, spec, names, [&](const ModelConfig& config, std::vector<std::string>& notes) {
    return planned_model(config, shards, notes);
  });
  const bool told = shards.metadata.empty();
  if (!told || describe(folder.kind).deployed) note_idle_heads(checkpoint, heads);
  if (told) explain(shards, checkpoint, heads);
  if (shards.has_old_metadata && !checkpoint.model)
    throw Error(
        ErrorKind::kBadInput,
        "has metadata that torch saved, which does not say how many ranks there were; without a config.json of a "
        "known family beside it nobody can tell whether one is missing")
        .in(checkpoint.path)
        .hint(hint_for_model(checkpoint));
  const std::vector<TiedParameter> tied = tied_parameters(checkpoint.model);
  shards.other_stages += remove_other_stages(shards, tied);
  if (const auto note = other_stages_note(shards)) checkpoint.notes.push_back(*note);
  checkpoint.map = sharded_source_map(shards, tied);
  if (told) checkpoint.map.proved_by_copies = hint_for_copies(checkpoint);
  if (checkpoint.model && (use != ConfigUse::kLenient || shards.has_old_metadata)) {
    prove_heads(shards, *checkpoint.model);
    prove_against_model(checkpoint.map, *checkpoint.model, folder.path);
  }
  order(checkpoint);
  note_left_out(shards, checkpoint);
  return checkpoint;
}

Checkpoint read_files(Checkpoint checkpoint, const std::vector<Container>& files, ConfigUse use,
                      const FamilySpec& spec) {
  std::unordered_set<std::string_view> names;
  for (const Container& file : files) add_names(file, names);
  read_model(checkpoint, use, spec, names, [&](const ModelConfig& config, std::vector<std::string>& notes) {
    return planned_model(config, files, notes);
  });
  const std::optional<Model>& model = checkpoint.model;
  checkpoint.map = whole_map(files, model ? tied_parameters(model) : std::vector<TiedParameter>{});
  if (files.size() == 1) checkpoint.file_metadata = files.front().metadata;
  for (const Container& file : files) note_warnings(file, checkpoint.notes);
  order(checkpoint);
  return checkpoint;
}

Checkpoint read_file(const fs::path& path, const FamilySpec& spec, const ConfigChoice& config) {
  Checkpoint checkpoint;
  checkpoint.path = path;
  checkpoint.directory = fs::absolute(path).parent_path();
  find_config(checkpoint, config);
  checkpoint.format = format_of_file(path);
  return read_files(std::move(checkpoint), {read_container(path, checkpoint.format)}, ConfigUse::kLenient, spec);
}

/// PEFT saves further adapters in folders beside the first.
Checkpoint read_adapter_file(const fs::path& directory, const fs::path& file, const FamilySpec& spec,
                             const ConfigChoice& config) {
  Checkpoint checkpoint = read_file(file, spec, config);
  std::vector<std::string> others;
  for (const auto& entry : fs::directory_iterator(directory))
    for (const char* name : {kAdapterSafetensorsFile, kAdapterPytorchFile})
      if (entry.is_directory() && path_exists(entry.path() / name)) others.push_back(entry.path().filename().string());
  std::sort(others.begin(), others.end());
  if (!others.empty())
    checkpoint.notes.push_back("this is about " + file.string() +
                               " alone; the adapters in its folders are not looked at: " + list_names(others));
  return checkpoint;
}

Checkpoint read_directory(const fs::path& directory, ConfigUse use, const FamilySpec& spec,
                          const ConfigChoice& config_choice) {
  Checkpoint checkpoint;
  checkpoint.what = Checkpoint::What::kHuggingFace;
  checkpoint.path = directory;
  checkpoint.directory = directory;
  find_config(checkpoint, config_choice);
  if (use == ConfigUse::kNeeded) {  // the first thing that is missed
    const ModelConfig config = read_model_config(directory);
    if (!spec && !has_config_plan(config)) find_family(config);
  }
  checkpoint.format = hf_format(directory).value_or(Format::kSafetensors);
  std::vector<Container> files = read_hf_checkpoint(directory, &checkpoint.index_metadata);
  return read_files(std::move(checkpoint), files, use, spec);
}

}  // namespace

Checkpoint read_sharded(const fs::path& path, ConfigUse use, const FamilySpec& spec, const AttentionOptions& heads,
                        const ConfigChoice& config) {
  if (!fs::is_directory(path))
    throw Error(ErrorKind::kBadInput, path_exists(path) ? "is not a directory" : "no such directory").in(path);
  const auto shards = find_shards_folder(path);
  if (shards) return read_shards(*shards, use, spec, heads, config);
  throw Error(ErrorKind::kBadInput,
              fmt::format("holds neither {}/ nor {}/ nor {}/ nor files of ranks", describe(ShardsKind::kRanks).folder,
                          describe(ShardsKind::kOptimum).folder, describe(ShardsKind::kPresharded).folder))
      .in(path)
      .hint("give the directory that holds the shards folder, or that folder itself");
}

Checkpoint read_hugging_face(const fs::path& directory, ConfigUse use, const FamilySpec& spec) {
  if (!fs::is_directory(directory))
    throw Error(ErrorKind::kBadInput, path_exists(directory) ? "is not a directory" : "no such directory")
        .in(directory)
        .hint("give the directory that holds config.json and the weights");
  return read_directory(directory, use, spec, {});
}

Checkpoint read_checkpoint(const fs::path& path, ConfigUse use, const FamilySpec& spec, const AttentionOptions& heads,
                           const ConfigChoice& config) {
  return with_file_system_errors([&] {
    if (!path_exists(path)) throw Error(ErrorKind::kBadInput, "no such file or directory").in(path);
    if (!fs::is_directory(path)) {
      Checkpoint checkpoint = read_file(path, spec, config);
      note_idle_heads(checkpoint, heads);
      return checkpoint;
    }
    const auto format = hf_format(path);
    const auto shards = find_shards_folder(path);
    if (shards && !format) return read_shards(*shards, use, spec, heads, config);
    if (!shards && !format) {
      for (const char* name : {kAdapterSafetensorsFile, kAdapterPytorchFile})
        if (path_exists(path / name)) return read_adapter_file(path, path / name, spec, config);
      if (!find_adapter_folders(path).empty())
        throw Error(ErrorKind::kUnsupported, "holds shards of adapters, which only consolidate reads")
            .in(path)
            .hint("reshard consolidate puts them together; what comes out can be looked at, converted and compared");
    }
    Checkpoint checkpoint = read_directory(path, use, spec, config);
    note_idle_heads(checkpoint, heads);
    if (shards)
      checkpoint.notes.push_back("there is also a sharded checkpoint in " + shards->path.string() +
                                 "; this is about the Hugging Face weights, give that folder to have the shards");
    return checkpoint;
  });
}

}  // namespace reshard
