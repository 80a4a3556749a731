#include "reshard/layouts/core/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string_view>
#include <unordered_set>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/formats/dcp/dcp_shards.h"
#include "reshard/formats/safetensors/hf_index.h"
#include "reshard/io/files.h"
#include "reshard/layouts/core/config_model.h"
#include "reshard/layouts/core/expert_stacks.h"
#include "reshard/layouts/core/file_warnings.h"
#include "reshard/layouts/core/misfits.h"
#include "reshard/layouts/core/read_model.h"
#include "reshard/layouts/core/tied_tensors.h"
#include "reshard/layouts/map/rank_record.h"
#include "reshard/layouts/map/whole_map.h"
#include "reshard/specs/config/model_config.h"
#include "reshard/specs/model/quantization.h"

namespace reshard {
namespace {

void order_naturally(SourceMap& map) {
  std::vector<std::string> names;
  for (const LogicalTensor& tensor : map.logical) names.push_back(tensor.name);
  std::sort(names.begin(), names.end(), natural_less);
  map.order_logical(names);
}

/// Copies rank records from the files to the map if they declare other ranks.
void take_records(const std::vector<Container>& containers, Checkpoint& checkpoint) {
  std::size_t first_file = 0;
  std::string rank;
  for (const Container& file : containers) {
    const auto record = read_record(file);
    if (record && rank.empty()) rank = describe_rank(*record);
    if (record && !describe_rank(*record).empty()) checkpoint.map.files[first_file].record = record;
    first_file += file.files.size();
  }
  if (!rank.empty())
    checkpoint.notes.missing("this is one rank of a sharded checkpoint, not a complete model: " + rank);
}

/// Notes that the names begin with a prefix that models of this family do not have, unless it is a part of theirs or the
/// model is part of a larger one.
void note_foreign_prefix(Checkpoint& checkpoint) {
  const LanguageModel& found = checkpoint.language_model;
  const std::string &usual = found.family->layers, &own = checkpoint.model->family->layers;
  const bool is_of_peft = own.starts_with("base_model.");
  if (found.is_part || is_of_peft || usual.empty() || ("." + usual).ends_with("." + own)) return;
  checkpoint.notes.mismatch(fmt::format(
      "the names of its layers begin with {}, but those of a {} with {}, and few programs load other names: "
      "`rename` changes them",
      printable(own), found.family->model_type, usual));
}

}  // namespace

void find_config(Files& files, Checkpoint& checkpoint, const ConfigChoice& choice) {
  const bool looks_at_own = choice.path.empty() || choice.where_missing;
  const auto own = looks_at_own ? find_model_config(files, checkpoint.directory) : std::nullopt;
  checkpoint.config = {};
  checkpoint.config.is_given = !choice.path.empty() && !own;
  if (checkpoint.config.is_given && files.is_directory(choice.path))
    checkpoint.config.path = find_model_config(files, choice.path).value_or(choice.path / kConfigFile);
  else if (checkpoint.config.is_given)
    checkpoint.config.path = choice.path;
  else if (own)
    checkpoint.config.path = *own;
  if (checkpoint.config.is_given && !files.exists(checkpoint.config.path))
    throw Error(ErrorKind::kBadInput,
                files.is_directory(choice.path) ? "contains no config.json" : "no such file or directory")
        .in(choice.path)
        .hint("set `config` to the model's config.json, or to the directory that contains it");
}

const ModelConfig& read_config(Files& files, Checkpoint& checkpoint) {
  if (!checkpoint.config.content)
    checkpoint.config.content = checkpoint.config.path.empty() ? read_model_config(files, checkpoint.directory)
                                                               : read_model_config_file(files, checkpoint.config.path);
  return *checkpoint.config.content;
}

void change_config(Checkpoint& checkpoint, ConfigChange change) {
  Json json = *checkpoint.config.content->json;
  apply_change(change, json);
  checkpoint.config.content->json = std::make_shared<const Json>(std::move(json));
  checkpoint.config.changes.push_back(std::move(change));
}

void read_model(Files& files, Checkpoint& checkpoint, const ReadContext& context,
                const std::unordered_set<std::string_view>& names, const PlannedModel& planned) {
  const FamilySpec& spec = context.family;
  const ConfigUse use = context.use;
  const bool is_described = checkpoint.config.path.empty() && describes_model(spec);
  if (use != ConfigUse::kNeeded && checkpoint.config.path.empty() && !is_described) {
    if (use != ConfigUse::kLenient && checkpoint.layout != nullptr)
      checkpoint.notes
          .missing("there is no config.json in " + checkpoint.directory.string() +
                   ", so it is unknown whether the checkpoint has every tensor of its model; to use a "
                   "config.json from elsewhere, set `config`")
          .in(checkpoint.directory);
    return;
  }
  try {
    const ModelConfig config = is_described ? empty_model_config(spec->model_type) : read_config(files, checkpoint);
    checkpoint.model_type = config.model_type;
    checkpoint.language_model = find_language_model(config, spec);
    const LanguageModel& found = checkpoint.language_model;
    if (!found.family && has_config_plan(config)) {
      checkpoint.model = planned(config, checkpoint.notes);
      return;
    }
    if (!found.family) {
      if ((use == ConfigUse::kStrict || use == ConfigUse::kRenamed) && checkpoint.layout != nullptr)
        checkpoint.notes.assumed(describe_unknown_type(found.config) +
                                 (checkpoint.has_ranks()
                                      ? ", so only the metadata describes the tensors"
                                      : ", so it is unknown whether the checkpoint has every tensor of its model"));
      return;
    }
    if (!found.unknown_type.empty())
      checkpoint.notes.assumed(fmt::format(
          "the model_type \"{}\" in text_config is unknown; reading it as {}, which is usual in models of {}",
          printable(found.unknown_type), found.family->model_type, printable(config.model_type)));
    const bool other = spec && spec->model_type != config.model_type && spec->model_type != found.config.model_type;
    const bool is_builtin = spec && spec == builtin_family(spec->model_type);
    if (other && !is_builtin && !config.model_type.empty())
      checkpoint.notes
          .mismatch(fmt::format("`spec` describes the model_type \"{}\", but {} has \"{}\"",
                                printable(spec->model_type), config.path.string(), printable(config.model_type)))
          .in(config.path);
    checkpoint.model = instantiate(found, names);
    checkpoint.notes.add(checkpoint.model->file_notes);
    if (use != ConfigUse::kRenamed && !names.empty()) note_foreign_prefix(checkpoint);
    if (spec && !is_builtin) checkpoint.model->family_from = FamilyFrom::kSpec;
    if (other && is_builtin) checkpoint.model->family_from = FamilyFrom::kOption;
  } catch (Error& error) {
    if (spec && error.hint().empty())
      error.hint(spec == builtin_family(spec->model_type)
                     ? "config.json lacks a value that this family needs: choose another `family`, or fix config.json"
                 : is_described ? "correct the description, or set `config` to the model's config.json"
                                : "`spec` and config.json do not match: correct one of them");
    if (use != ConfigUse::kLenient || checkpoint.config.is_given || is_described) throw;
    checkpoint.notes.mismatch(error.what()).in(error.path());
  }
}

void order_tensors(Checkpoint& checkpoint) {
  if (!checkpoint.model) {
    if (checkpoint.has_ranks()) order_naturally(checkpoint.map);
    return;
  }
  std::vector<std::string> names;
  names.reserve(checkpoint.model->parameters.size());
  for (const ModelParameter& parameter : checkpoint.model->parameters) names.push_back(parameter.name);
  checkpoint.map.order_logical(names);
}

std::string hint_for_model(const Checkpoint& checkpoint) {
  const std::string& model_type = checkpoint.language_model.config.model_type;
  if (!model_type.empty())
    return fmt::format(
        "{} has the unknown model_type \"{}\": choose a built-in family with `family`, or give a description with "
        "`spec`",
        checkpoint.config.path.string(), printable(model_type));
  if (checkpoint.language_model.config.json)
    return fmt::format(
        "{} has no \"model_type\": choose a built-in family with `family`, or give a description with `spec`",
        checkpoint.config.path.string());
  return "copy the model's config.json into " + checkpoint.directory.string() +
         ", or set `config` to its path; without one, describe the model with `spec`";
}

void recognise_quantization(Files& files, Checkpoint& checkpoint, std::vector<Container>& containers,
                            const ReadContext& context) {
  constexpr const char* kKey = "quantization_config";
  QuantizationEvidence evidence;
  for (const Container& file : containers)
    for (const TensorEntry& tensor : file.tensors) evidence.add(tensor.name, tensor.dtype, tensor.shape);
  if (!evidence.may_be_quantized()) return;
  const LanguageModel model =
      checkpoint.config.path.empty() ? LanguageModel() : trained_language_model(files, checkpoint, context);
  std::shared_ptr<const Json> quantization;
  try {
    quantization = evidence.config(model.family ? model.family->model_type : std::string());
  } catch (Error& error) {
    throw error.in(checkpoint.path);
  }
  if (quantization == nullptr || !model.family) return;
  const Json* declared = find_key(*model.config.json, kKey);
  if (declared == nullptr || declared->is_null()) {
    change_config(checkpoint, quantization_change(quantization));
  } else if (quantization->at("quant_method") != quant_method(model.config)) {
    return;
  }
  std::unordered_set<std::string> modules;
  for (const Family::Module& module : model.family->modules) modules.insert(module.name);
  const auto is_known = [&](const std::string& name) {
    return modules.count(with_stars(name.substr(0, name.rfind('.')))) > 0;
  };
  const std::string& prefix = inference_scheme().prefix;
  for (Container& file : containers)
    for (TensorEntry& tensor : file.tensors)
      if (!is_known(tensor.name) && is_known(prefix + tensor.name)) tensor.name.insert(0, prefix);
}

void validate_no_part(const std::filesystem::path& path, const FileMetadata& metadata, ConfigUse use) {
  if (use != ConfigUse::kLenient && has_saved_offsets(metadata))
    throw Error(ErrorKind::kBadInput, "contains one rank's part of each tensor, as its metadata records")
        .in(path)
        .hint(
            "give the directory that contains the files of all ranks under the names that they were saved with, such "
            "as "
            "shard-00001-model-00001-of-00001.safetensors");
}

Checkpoint read_whole_files(Files& files, Checkpoint checkpoint, const std::vector<Container>& containers,
                            const ReadContext& context) {
  const std::vector<WholeTensor> tensors = whole_tensors(containers);
  std::unordered_set<std::string_view> names;
  names.reserve(tensors.size());
  for (const WholeTensor& tensor : tensors) names.insert(tensor.name);
  take_vocabulary(files, checkpoint, context, tensors, names);
  read_model(files, checkpoint, context, names,
             [&](const ModelConfig& config, Notes& notes) { return planned_model(config, tensors, notes); });
  checkpoint.map = whole_map(containers);
  unpack_experts(checkpoint, context);
  settle_ties(files, checkpoint);
  take_records(containers, checkpoint);
  for (const Container& file : containers) validate_no_part(file.path, file.metadata, context.use);
  if (containers.size() == 1) checkpoint.file_metadata = containers.front().metadata;
  FileWarnings warnings;
  for (const Container& file : containers) warnings.add(file.path.filename().string(), file.warnings);
  warnings.note(checkpoint.notes);
  order_tensors(checkpoint);
  return checkpoint;
}

}  // namespace reshard
