#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/io/files.h"
#include "reshard/specs/parallel/transformation_specs.h"

namespace reshard {

/// PEFT's prefix of every name in the wrapped model.
inline constexpr std::string_view kPeftPrefix = "base_model.model.";
constexpr std::string_view without_peft_prefix(std::string_view name) {
  return name.substr(name.starts_with(kPeftPrefix) ? kPeftPrefix.size() : 0);
}

/// Follows the name of a module that is adapted, in names of its own tensors.
inline constexpr std::string_view kBaseLayer = ".base_layer";
/// Returns the name that a tensor of the base model has without adapters.
std::string without_base_layer(std::string name);

/// The components of an adapter tensor's name: "base_model.model.m.lora_A.weight" is the lora_A of
/// "base_model.model.m".
struct LoraName {
  std::string module;
  std::string component;  // "lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector"
  std::string rest;       // "weight", "bias", "weight_q"; in metadata, after the name of the adapter; may be empty
};
/// Returns std::nullopt for a name without such a component.
std::optional<LoraName> lora_name(std::string_view name);

/// The metadata of all adapters in a metadata file, divided by adapter once.
class AdapterMetadata {
 public:
  explicit AdapterMetadata(StageMetadata metadata);
  const std::set<std::string>& names() const { return names_; }
  /// Returns the metadata for the files of one adapter: names have the form in those files, without the name of the
  /// adapter ("m.lora_A.NAME.weight" becomes "m.lora_A.weight", "m.modules_to_save.NAME.weight" becomes "m.weight").
  /// Omits other adapters. Matches `adapter` literally. In time proportional to the result.
  StageMetadata of(const std::string& adapter) const;

 private:
  StageMetadata metadata_;
  std::set<std::string> names_;
  /// Indices of the parameters that may belong to an adapter, by its name. Those of all adapters have the empty name.
  std::map<std::string, std::vector<std::size_t>> by_adapter_;
};

/// Reads the metadata files of adapters. The folder of each adapter contains a copy of the same file, which describes
/// all of them: equal files are parsed once.
class AdapterMetadataReader {
 public:
  /// Borrows `files`.
  explicit AdapterMetadataReader(Files& files) : files_(files) {}
  /// Returns a reference that is valid until the next call.
  /// \throws Error as read_metadata.
  const AdapterMetadata& read(const std::filesystem::path& path);

 private:
  Files& files_;
  std::map<std::string, AdapterMetadata> by_text_;
};

}  // namespace reshard
