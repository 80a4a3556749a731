#include "reshard/layouts/ranks/adapter_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/formats/torch/state_dict.h"
#include "reshard/io/text_file.h"
#include "reshard/layouts/contents/equal_pieces.h"
#include "reshard/layouts/ranks/other_stages.h"
#include "reshard/layouts/ranks/rank_format.h"
#include "reshard/layouts/ranks/read_ranks.h"
#include "reshard/layouts/ranks/sharded_map.h"
#include "reshard/specs/config/model_config.h"
#include "reshard/specs/model/language_model.h"
#include "reshard/specs/peft/adapter_metadata.h"
#include "reshard/specs/peft/lora_config.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

std::unordered_set<std::string> names_in(const Container& file) {
  std::unordered_set<std::string> names;
  for (const TensorEntry& tensor : file.tensors) names.insert(tensor.name);
  return names;
}

/// Validates that the spec of each fused linear explains all of its tensors in the files of an adapter.
/// \throws Error kUnsupported, naming the tensor.
void validate_adapter_explained(const ShardedCheckpoint& checkpoint) {
  for (std::uint32_t pp_rank = 0; pp_rank < checkpoint.pp; ++pp_rank) {
    const Container& file = checkpoint.files[pp_rank].front();
    const auto held = names_in(file);
    std::vector<std::string> prefixes;  // one per fused linear
    for (const FusedLayer& layer : fused_layers(checkpoint.metadata[pp_rank])) prefixes.push_back(layer.module + ".");
    std::sort(prefixes.begin(), prefixes.end());
    for (const PartitionRule& rule : rules_of_stage(checkpoint, pp_rank)) {
      if (rule.from_spec || !held.count(rule.stored_name)) continue;
      const std::string_view name = without_peft_prefix(rule.stored_name);
      const auto after = std::upper_bound(prefixes.begin(), prefixes.end(), name);
      if (after != prefixes.begin() && name.starts_with(*std::prev(after)))
        throw Error(ErrorKind::kUnsupported,
                    "belongs to a fused linear, and the division of its rows among the original linears is unknown")
            .in(file.path)
            .tensor(rule.stored_name);
    }
  }
}

/// Validates that the tensors of one module fit each other. This detects a bias or magnitude that is split although its
/// metadata does not declare it. `where` is for errors.
/// \throws Error kBadInput, naming the tensor.
void validate_adapter_sizes(const SourceMap& map, const fs::path& where) {
  const auto shape_of = [&](const std::string& name) -> const Dims* {
    const auto found = map.find_logical(name);
    return found ? &map.logical[*found].shape : nullptr;
  };
  for (const LogicalTensor& tensor : map.logical) {
    const auto name = lora_name(tensor.name);
    if (!name || tensor.constant() || tensor.shape.empty()) continue;
    const Dims* b = shape_of(name->module + ".lora_B.weight");
    if (b == nullptr || b->size() != 2) continue;
    const bool per_output = name->component == "lora_magnitude_vector" || tensor.name.ends_with(".lora_B.bias");
    const bool a = tensor.name.ends_with(".lora_A.weight");
    if ((per_output && tensor.shape[0] != (*b)[0]) || (a && tensor.shape[0] != (*b)[1]))
      throw Error(ErrorKind::kBadInput, fmt::format("would be {}, which does not fit its lora_B of {}",
                                                    to_string(tensor.shape), to_string(*b)))
          .in(where)
          .tensor(tensor.name)
          .hint("the metadata may not record how it is split");
  }
}

/// Returns the metadata without tensors that the files lack, in the order of the files.
std::vector<StageMetadata> held_metadata(const ShardedCheckpoint& shards) {
  std::vector<StageMetadata> stages = shards.metadata;
  for (std::uint32_t pp_rank = 0; pp_rank < shards.pp; ++pp_rank) {
    std::unordered_map<std::string, std::size_t> place;
    for (const TensorEntry& tensor : shards.files[pp_rank].front().tensors) place.emplace(tensor.name, place.size());
    auto& parameters = stages[pp_rank].parameters;
    std::erase_if(parameters, [&](const auto& parameter) { return place.count(parameter.name) == 0; });
    std::sort(parameters.begin(), parameters.end(),
              [&](const auto& a, const auto& b) { return place.at(a.name) < place.at(b.name); });
  }
  return stages;
}

void add_notes(const ShardedCheckpoint& shards, Notes& notes) {
  if (const auto note = other_stages_note(shards)) notes.left_out(*note);
  std::vector<std::string> lost = shards.not_saved;  // mostly names of the base model, which is never saved
  std::erase_if(lost, [](const std::string& name) { return !lora_name(name); });
  if (!lost.empty())
    notes
        .left_out(fmt::format("{} that the metadata lists for the adapter {} {} not in the files and left out: {}",
                              lost.size() == 1 ? "a parameter" : "parameters",
                              printable(shards.adapter.value_or(kDefaultAdapter)), lost.size() == 1 ? "is" : "are",
                              list_names(lost)))
        .of(lost);
}

/// Calls `change` with the tensors of each file.
template <typename Change>
void change_tensors(ShardedCheckpoint& shards, const Change& change) {
  for (std::vector<Container>& stage : shards.files)
    for (Container& file : stage) change(file.tensors);
  for (ShardedCheckpoint::Copy& copy : shards.copies) change(copy.file.tensors);
}

bool has_settings(const Container& file) {
  return std::any_of(file.metadata.begin(), file.metadata.end(),
                     [](const auto& entry) { return entry.first == kLoraConfigKey; });
}

/// Returns the config of the adapter in `shards`: that in its first rank file, or else that next to the folder.
AdapterConfig settings_of(Files& files, const ShardedCheckpoint& shards) {
  const fs::path& folder = shards.folder.path;
  const Container& first = shards.files.front().front();
  if (has_settings(first))
    if (const auto text = saved_lora_config(files, first.path))
      return parse_adapter_config(peft_config_text(*text, first.path), first.path);
  const fs::path above = directory_above(files, folder);
  for (const fs::path& directory : {above, folder}) {
    const fs::path path = directory / kAdapterConfigFile;
    if (files.exists(path))
      return parse_adapter_config(peft_config_text(read_text_file(files, path, kMaxConfigBytes), path), path);
  }
  throw Error(ErrorKind::kBadInput,
              fmt::format("contains a LoRA adapter without its settings: neither {} in the rank files nor {} in {}",
                          kLoraConfigKey, kAdapterConfigFile, above.string()))
      .in(folder)
      .hint(fmt::format("copy {} from the training run's lora_save_dir into {}: the adapter's scale depends on its "
                        "lora_alpha",
                        kAdapterConfigFile, above.string()));
}

/// Validates that pieces on different ranks differ: those of an adapter that was gathered are equal.
void validate_not_gathered(Files& files, const SourceMap& map) {
  try {
    validate_pieces_differ(files, map);
  } catch (Error& error) {
    throw error.hint(
        "the adapter was gathered before it was saved (merge_sharded_lora), which keeps the rows of one replica of "
        "each key/value head and loses the others: save it again with merge_sharded_lora=False; or heads are placed "
        "differently (`from-kv-replication`, `from-kv-size-multiplier`), or a rank file was copied over another");
  }
}

/// Whether the model itself has adapters, as phi4mm has.
bool has_own_adapters(Files& files, Checkpoint& checkpoint, const FamilySpec& spec) {
  if (checkpoint.config.path.empty()) return false;
  const auto family = find_language_model(read_config(files, checkpoint), spec).family;
  return family && std::any_of(family->modules.begin(), family->modules.end(),
                               [](const Family::Module& module) { return lora_name(module.name).has_value(); });
}

}  // namespace

void choose_lora_part(Files& files, const ReadContext& context, ShardedCheckpoint& shards, Checkpoint& checkpoint) {
  bool has_adapter = false, has_base = false;
  for (const auto& stage : shards.files)
    for (const TensorEntry& tensor : stage.front().tensors) {
      has_adapter = has_adapter || lora_name(tensor.name);
      has_base = has_base || tensor.name.find(std::string(kBaseLayer) + ".weight") != std::string::npos;
    }
  has_adapter = has_adapter && !has_own_adapters(files, checkpoint, context.family);
  const bool wants_adapter = context.options.choice(kLoraPart, "from-") == kLoraParts[1];
  if (context.options.has(kLoraPart.name) && !(wants_adapter ? has_adapter : has_base || !has_adapter))
    throw Error(ErrorKind::kBadInput, wants_adapter ? "contains no LoRA adapter, or one that is merged into the weights"
                                                    : "contains a LoRA adapter without its base model")
        .in(checkpoint.path)
        .hint("leave out `from-lora`");
  if (!has_adapter) return;
  if (has_base && !wants_adapter) {
    checkpoint.notes.left_out(
        "the files also contain a LoRA adapter, which is left out: `from-lora` adapter reads it instead");
    return change_tensors(shards, [](std::vector<TensorEntry>& tensors) {
      std::erase_if(tensors, [](const TensorEntry& tensor) { return lora_name(tensor.name).has_value(); });
      for (TensorEntry& tensor : tensors) tensor.name = without_base_layer(std::move(tensor.name));
    });
  }
  Adapter& adapter = checkpoint.adapters.emplace_back();
  adapter.name = kDefaultAdapter;
  adapter.path = checkpoint.path;
  adapter.config = settings_of(files, shards);
  if (adapter.config.path.filename() == kAdapterConfigFile) checkpoint.directory = adapter.config.path.parent_path();
  if (!has_base) return;
  checkpoint.notes.left_out("the base model in the same files is left out: `from-lora` base reads it instead");
  change_tensors(shards, [is_added = added_tensors(adapter.config)](std::vector<TensorEntry>& tensors) {
    std::erase_if(tensors,
                  [&](const TensorEntry& tensor) { return !lora_name(tensor.name) && !is_added(tensor.name); });
  });
}

void finish_lora(Files& files, const ShardedCheckpoint& shards, Checkpoint& checkpoint) {
  Adapter own = std::move(checkpoint.adapters.back());
  checkpoint.adapters.clear();
  add_adapter(checkpoint, shards, std::move(own), adapted_layers(shards), std::string(kPeftPrefix));
  Adapter& adapter = checkpoint.adapters.back();
  for (const AdaptedModule& module : adapter.modules)
    if (module.r != adapter.config.r)
      throw Error(ErrorKind::kBadInput,
                  fmt::format("has {} rows, but the adapter's settings have a rank of {}", module.r, adapter.config.r))
          .in(adapter.config.path)
          .tensor(module.trained_as + ".lora_A.weight")
          .hint("the settings belong to another adapter");
  adapter.separate_text = adapter.config.text = named_targets(adapter.config, adapter.modules);
  validate_not_gathered(files, checkpoint.map);
}

std::vector<FusedLayer> adapted_layers(const ShardedCheckpoint& shards) {
  validate_adapter_explained(shards);
  std::vector<FusedLayer> layers;
  for (std::uint32_t pp_rank = 0; pp_rank < shards.pp; ++pp_rank) {
    const auto held = names_in(shards.files[pp_rank].front());
    for (FusedLayer& layer : fused_layers(shards.metadata[pp_rank]))
      if (held.count(layer.module + ".lora_A.weight") ||
          held.count(std::string(kPeftPrefix) + layer.module + ".lora_A.weight"))
        layers.push_back(std::move(layer));
  }
  return layers;
}

std::vector<AdaptedModule> adapted_modules(const SourceMap& map, const std::vector<FusedLayer>& fused) {
  std::unordered_map<std::string_view, const std::string*> fused_of;
  for (const FusedLayer& layer : fused)
    for (const std::string& linear : layer.linears) fused_of.emplace(linear, &layer.module);
  std::vector<AdaptedModule> modules;
  for (const LogicalTensor& tensor : map.logical) {
    const auto name = lora_name(tensor.name);
    if (!name || tensor.constant() || tensor.shape.empty()) continue;
    if (!(name->component == "lora_A" && name->rest == "weight") && name->component != "lora_embedding_A") continue;
    AdaptedModule module;
    module.name = without_peft_prefix(name->module);
    const auto found = fused_of.find(module.name);
    module.trained_as = found == fused_of.end() ? module.name : *found->second;
    module.r = tensor.shape[0];
    modules.push_back(std::move(module));
  }
  return modules;
}

void add_adapter(Checkpoint& checkpoint, const ShardedCheckpoint& shards, Adapter adapter,
                 const std::vector<FusedLayer>& fused, const std::string& omitted) {
  adapter.stages = held_metadata(shards);
  checkpoint.format = shards.format;
  checkpoint.mesh = adapter.mesh = {shards.tp, shards.pp, 1, shards.ep};
  checkpoint.map = SourceMap();
  checkpoint.map.append(sharded_source_map(shards, {}), omitted);
  validate_adapter_sizes(checkpoint.map, checkpoint.path);
  add_notes(shards, checkpoint.notes);
  adapter.modules = adapted_modules(checkpoint.map, fused);
  checkpoint.adapters.push_back(std::move(adapter));
}

}  // namespace reshard
