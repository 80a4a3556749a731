#include "reshard/specs/peft/adapter_metadata.h"

#include <algorithm>
#include <array>
#include <utility>

#include "reshard/io/text_file.h"
#include "reshard/specs/stages/stage_json.h"

namespace reshard {
namespace {

constexpr std::array<std::string_view, 5> kComponents = {"lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B",
                                                         "lora_magnitude_vector"};
constexpr std::string_view kModulesToSave = ".modules_to_save.";

/// Returns the part after `adapter` in "adapter.weight"; std::nullopt for other adapters. The adapter's name may
/// contain dots, the part after it may not.
std::optional<std::string> after_adapter(const std::string& rest, const std::string& adapter) {
  if (rest == adapter) return "";
  if (!rest.starts_with(adapter + ".")) return std::nullopt;
  const std::string leaf = rest.substr(adapter.size() + 1);
  if (leaf.find('.') != std::string::npos) return std::nullopt;
  return leaf;
}

/// Returns the name in the adapter's files; std::nullopt if the tensor belongs to another adapter.
std::optional<std::string> name_in_files(const LoraName& name, const std::string& adapter) {
  const auto leaf = after_adapter(name.rest, adapter);
  if (!leaf) return std::nullopt;
  const std::string stem = name.module + "." + name.component;
  // PEFT saves bare parameters as bare parameters.
  const bool bare = name.component != "lora_A" && name.component != "lora_B";
  return bare || leaf->empty() ? stem : stem + "." + *leaf;
}

/// Same for a trained copy of a module. The part after the adapter's name may contain dots, so the longer name of
/// another adapter may have the same prefix.
std::optional<std::string> saved_name(const std::string& name, std::size_t at, const std::string& adapter,
                                      const std::set<std::string>& adapters) {
  const std::string rest = name.substr(at + kModulesToSave.size());
  if (!rest.starts_with(adapter + ".")) return std::nullopt;
  for (std::size_t dot = rest.find('.', adapter.size() + 1); dot != rest.npos; dot = rest.find('.', dot + 1))
    if (adapters.count(rest.substr(0, dot)) > 0) return std::nullopt;
  return name.substr(0, at) + rest.substr(adapter.size());
}

/// Returns the adapters in a metadata file.
std::set<std::string> adapter_names(const StageMetadata& metadata) {
  std::set<std::string> names;
  for (const ParallelParameter& parameter : metadata.parameters) {
    const auto name = lora_name(parameter.name);
    if (!name || name->rest.empty()) continue;
    const bool bare = name->component.starts_with("lora_embedding_");
    names.insert(bare ? name->rest : name->rest.substr(0, name->rest.rfind('.')));
  }
  return names;
}

}  // namespace

std::string without_base_layer(std::string name) {
  const std::size_t at = name.find(std::string(kBaseLayer) + ".");
  return at == std::string::npos ? name : name.erase(at, kBaseLayer.size());
}

std::optional<LoraName> lora_name(std::string_view name) {
  for (std::size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.', dot + 1)) {
    const std::size_t end = std::min(name.find('.', dot + 1), name.size());
    const std::string_view component = name.substr(dot + 1, end - dot - 1);
    if (component == "modules_to_save") return std::nullopt;  // followed by an adapter's name
    if (std::find(kComponents.begin(), kComponents.end(), component) == kComponents.end()) continue;
    return LoraName{std::string(name.substr(0, dot)), std::string(component),
                    std::string(end == name.size() ? "" : name.substr(end + 1))};
  }
  return std::nullopt;
}

AdapterMetadata::AdapterMetadata(StageMetadata metadata)
    : metadata_(std::move(metadata)), names_(adapter_names(metadata_)) {
  for (std::size_t i = 0; i < metadata_.parameters.size(); ++i) {
    const std::string& name = metadata_.parameters[i].name;
    std::string rest;
    if (const auto lora = lora_name(name))
      rest = lora->rest;
    else if (const auto at = name.find(kModulesToSave); at != std::string::npos)
      rest = name.substr(at + kModulesToSave.size());
    by_adapter_[rest].push_back(i);
    for (std::size_t dot = rest.find('.'); dot != rest.npos; dot = rest.find('.', dot + 1))
      by_adapter_[rest.substr(0, dot)].push_back(i);
  }
}

StageMetadata AdapterMetadata::of(const std::string& adapter) const {
  StageMetadata own;
  own.modules = metadata_.modules;
  std::vector<std::size_t> indices;
  for (const std::string& key : {std::string(), adapter})
    if (const auto found = by_adapter_.find(key); found != by_adapter_.end())
      indices.insert(indices.end(), found->second.begin(), found->second.end());
  std::sort(indices.begin(), indices.end());
  indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
  for (const std::size_t i : indices) {
    const ParallelParameter& parameter = metadata_.parameters[i];
    std::optional<std::string> name = parameter.name;
    if (const auto lora = lora_name(parameter.name))
      name = name_in_files(*lora, adapter);
    else if (const auto at = parameter.name.find(kModulesToSave); at != std::string::npos)
      name = saved_name(parameter.name, at, adapter, names_);
    if (!name) continue;
    own.parameters.push_back(parameter);
    own.parameters.back().name = *name;
  }
  return own;
}

const AdapterMetadata& AdapterMetadataReader::read(const std::filesystem::path& path) {
  constexpr std::size_t kMost = 64;  // the files of one adapter: one per pipeline rank
  std::string text = read_text_file(files_, path, kMaxMetadataBytes);
  if (const auto found = by_text_.find(text); found != by_text_.end()) return found->second;
  AdapterMetadata metadata(read_metadata(files_, path));
  if (by_text_.size() >= kMost) by_text_.clear();
  return by_text_.emplace(std::move(text), std::move(metadata)).first->second;
}

}  // namespace reshard
