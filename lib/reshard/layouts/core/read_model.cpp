#include "reshard/layouts/core/read_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/io/files.h"
#include "reshard/layouts/core/config_model.h"
#include "reshard/layouts/core/expert_stacks.h"
#include "reshard/layouts/core/misfits.h"
#include "reshard/layouts/core/strangers.h"
#include "reshard/layouts/core/tied_tensors.h"
#include "reshard/specs/config/model_config.h"
#include "reshard/specs/model/language_model.h"
#include "reshard/specs/model/quantization.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kVocabularyKey = "vocab_size";

/// Folders in which trainers save a model's config.json and tokenizer: verl, NeMo Automodel, NeMo-RL.
constexpr const char* kModelFolders[] = {"huggingface", ".hf_metadata", "tokenizer"};

/// Validates that all tensors of the model exist, and notes extra tensors.
void validate_trained(Checkpoint& checkpoint) {
  const auto besides = validate_trained_against_model(checkpoint.map, *checkpoint.model, checkpoint.path);
  if (!besides.empty())
    checkpoint.notes.mismatch("config.json does not explain these tensors: " + list_names(besides)).of(besides);
}

/// Returns the names of the parameters with a row per token: embeddings and heads.
std::set<std::string> vocabulary_parameters(const Family& family) {
  std::set<std::string> names;
  for (const Family::Module& module : family.modules)
    if (!module.shape.empty() && module.shape[0].text() == kVocabularyKey)
      names.insert(module.name + "." + module.parameter);
  return names;
}

/// Whether the tensors are parameters of the model and have their shapes.
bool have_shapes(const std::vector<const WholeTensor*>& tensors, const LanguageModel& model,
                 const std::unordered_set<std::string_view>& names) {
  try {
    const Model whole = instantiate(model, names);
    return std::all_of(tensors.begin(), tensors.end(), [&](const WholeTensor* tensor) {
      return std::any_of(whole.parameters.begin(), whole.parameters.end(), [&](const ModelParameter& parameter) {
        return parameter.name == tensor->name && parameter.shape == tensor->shape;
      });
    });
  } catch (const Error&) {
    return false;  // reported when the model is read
  }
}

/// Reads the model of a checkpoint without its quantization_config if no tensor is quantised: training needs plain weights,
/// and programs save the config.json of the model that they began with.
void leave_out_quantization(Files& files, Checkpoint& checkpoint, const std::vector<TrainedTensor>& tensors) {
  constexpr const char* kKey = "quantization_config";
  QuantizationEvidence evidence;
  for (const TrainedTensor& tensor : tensors) {
    const DType dtype = tensor.dtype.value();
    const bool is_plain = describe(dtype).kind == DTypeClass::kFloat && bits(dtype) >= 16;
    if (!is_plain || is_quantized_tensor(tensor.name)) return;
    evidence.add(tensor.name, dtype, tensor.shape);
  }
  if (checkpoint.config.path.empty() || evidence.may_be_quantized()) return;
  try {
    const ModelConfig& config = read_config(files, checkpoint);
    if (!config.json->is_object() || !config.json->contains(kKey) || config.json->at(kKey).is_null()) return;
    change_config(checkpoint, quantization_change(nullptr));
  } catch (const Error& error) {
    if (is_disk_fault(error)) throw;  // others are errors when the model is read
  }
}

/// Returns text such as "2 tensors WHAT are left out".
std::string left_out_text(std::uint64_t count, const std::string& what) {
  return fmt::format("{} tensor{} {} {} left out", count, count == 1 ? "" : "s", what, count == 1 ? "is" : "are");
}

}  // namespace

std::vector<fs::path> model_directories(Files& files, const fs::path& folder) {
  std::vector<fs::path> directories;
  for (const fs::path& parent : {folder, directory_above(files, folder)}) {
    directories.push_back(parent);
    for (const char* name : kModelFolders) directories.push_back(parent / name);
  }
  return directories;
}

fs::path trained_directory(Files& files, const fs::path& folder) {
  for (const fs::path& directory : model_directories(files, folder))
    if (files.exists(directory / kConfigFile)) return directory;
  return folder;
}

LanguageModel trained_language_model(Files& files, Checkpoint& checkpoint, const ReadContext& context) {
  LanguageModel model;
  if (checkpoint.config.path.empty()) {
    model.family = context.family;
    return model;
  }
  try {
    model = find_language_model(read_config(files, checkpoint), context.family);
  } catch (const Error& error) {
    if (is_disk_fault(error)) throw;
    model.family.reset();
  }
  return model;
}

void take_vocabulary(Files& files, Checkpoint& checkpoint, const ReadContext& context,
                     const std::vector<WholeTensor>& tensors, const std::unordered_set<std::string_view>& names) {
  if (checkpoint.config.path.empty()) return;
  const LanguageModel model = trained_language_model(files, checkpoint, context);
  const Json* const size = model.family ? find_key(*model.config.json, kVocabularyKey) : nullptr;
  if (size == nullptr || !size->is_number_unsigned()) return;
  const std::set<std::string> of_vocabulary = vocabulary_parameters(*with_prefixes_of(model.family, names));
  std::vector<const WholeTensor*> found;
  for (const WholeTensor& tensor : tensors)
    if (of_vocabulary.count(tensor.name) > 0 && names.count(tensor.name) > 0) found.push_back(&tensor);
  if (found.empty() || found.front()->shape.empty()) return;
  const std::uint64_t rows = found.front()->shape[0];
  if (rows <= size->get<std::uint64_t>()) return;
  ModelConfig larger = read_config(files, checkpoint);
  std::vector<ConfigChange> changes = changes_of_key(*larger.json, kVocabularyKey, *size, Json(rows));
  Json json = *larger.json;
  for (const ConfigChange& change : changes) apply_change(change, json);
  larger.json = std::make_shared<const Json>(std::move(json));
  if (changes.empty() || !have_shapes(found, find_language_model(larger, context.family), names)) return;
  checkpoint.notes
      .assumed(fmt::format("{} has {} rows, but {} in config.json is {}: taken as added tokens", found.front()->name,
                           rows, kVocabularyKey, size->dump()))
      .of({found.front()->name});
  for (ConfigChange& change : changes) change_config(checkpoint, std::move(change));
}

KnownModel known_model(Files& files, Checkpoint& checkpoint, const ReadContext& context, LanguageModel& described) {
  described = trained_language_model(files, checkpoint, context);
  KnownModel known(described.family.get(), described.is_part);
  known.rename = context.rename;
  known.config = described.config.json;
  return known;
}

StateNames names_in_model(const std::vector<TrainedTensor>& entries, const KnownModel& model,
                          const std::vector<std::string>& beside, ConfigUse use, const fs::path& where, Notes& notes) {
  std::vector<std::string> names;
  names.reserve(entries.size());
  for (const TrainedTensor& entry : entries) names.push_back(entry.name);
  StateNames found;
  try {
    found = find_state_names(names, model, beside);
  } catch (Error& error) {
    if (error.kind() != ErrorKind::kBadInput || (use != ConfigUse::kRenamed && use != ConfigUse::kLenient))
      throw error.in(where);
    notes.mismatch(fmt::format("names of tensors are kept as stored: {}", error.in(where).what())).in(where);
    found = names_as_stored(names, beside);
  }
  if (std::string note = state_names_note(found); !note.empty()) notes.changed(std::move(note));
  return found;
}

PackedEntries packed_entries(const std::vector<TrainedTensor>& entries, const StateNames& names,
                             const fs::path& where) {
  PackedEntries packed{where, {}};
  for (std::size_t i = 0; i < names.entries.size(); ++i)
    if (const NamedEntry& named = names.entries[i]; named.packed != nullptr)
      packed.by_name.emplace(named.name, PackedEntry{named.packed, entries[i].name, entries[i].shape});
  return packed;
}

std::string left_states_text(const TensorCount& states) {
  return left_out_text(states.tensors, "of optimizer state (" + format_bytes(states.bytes) + ")");
}

std::string left_files_text(const BesideModel& beside, const char* whose) {
  const bool one = beside.files == 1;
  const std::string size = beside.file_bytes > 0 ? fmt::format(" ({})", format_bytes(beside.file_bytes)) : "";
  return fmt::format("{} file{} of {}{} {} left out", beside.files, one ? "" : "s", whose, size, one ? "is" : "are");
}

void leave_out_others(const std::vector<TrainedTensor>& entries, const StateNames& names, BesideModel& beside,
                      Notes& notes) {
  std::vector<std::string> others;
  TensorCount states;
  StateCounts counts;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (i < names.entries.size() && !names.entries[i].name.empty()) continue;
    const bool is_state = names.is_of_optimizer(entries[i].name);
    TensorCount& count = is_state ? states : beside.other;
    ++count.tensors;
    count.bytes += entries[i].bytes();
    if (!is_state) others.push_back(entries[i].name);
    if (is_state && entries[i].dtype)
      counts.add(std::string(names.state_of(entries[i].name)), *entries[i].dtype, entries[i].bytes());
  }
  beside.optimizer.tensors += states.tensors;
  beside.optimizer.bytes += states.bytes;
  for (OptimizerSummary::State& state : counts.take()) beside.states.push_back(std::move(state));
  if (states.tensors > 0) notes.left_out(left_states_text(states));
  if (!others.empty())
    notes.left_out(left_out_text(others.size(), "in addition to the model") + ": " + list_names(others)).of(others);
}

StateNames trained_names(const std::vector<TrainedTensor>& entries, const KnownModel& model, ConfigUse use,
                         Checkpoint& checkpoint) {
  StateNames names = names_in_model(entries, model, {}, use, checkpoint.path, checkpoint.notes);
  checkpoint.old_names = std::move(names.old_names);
  if (!names.are_replaced) checkpoint.names_of = names.program;
  leave_out_others(entries, names, checkpoint.beside_model.emplace(), checkpoint.notes);
  return names;
}

void read_trained_model(Files& files, Checkpoint& checkpoint, const ReadContext& context,
                        const std::vector<TrainedTensor>& tensors, const PackedEntries& packed) {
  std::vector<WholeTensor> whole;
  std::unordered_set<std::string_view> names;
  whole.reserve(tensors.size());
  names.reserve(tensors.size());
  for (const TrainedTensor& tensor : tensors) {
    whole.push_back({tensor.name, tensor.shape});
    if (packed.by_name.count(tensor.name) == 0) names.insert(tensor.name);
  }
  take_vocabulary(files, checkpoint, context, whole, names);  // other programs' padding is cut off
  const std::vector<std::string> in_packed = packed.tensors();
  names.insert(in_packed.begin(), in_packed.end());
  leave_out_quantization(files, checkpoint, tensors);
  read_model(files, checkpoint, context, names,
             [&](const ModelConfig& config, Notes& notes) { return planned_model(config, whole, notes); });
}

void finish_trained_map(Files& files, Checkpoint& checkpoint, const ReadContext& context, const PackedEntries& packed) {
  unpack_entries(checkpoint.map, packed, checkpoint, context.use);
  unpack_experts(checkpoint, context);
  settle_ties(files, checkpoint);
  if ((context.use == ConfigUse::kStrict || context.use == ConfigUse::kNeeded) && checkpoint.model)
    validate_trained(checkpoint);
  order_tensors(checkpoint);
}

}  // namespace reshard
