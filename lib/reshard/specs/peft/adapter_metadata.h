#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "reshard/specs/parallel/transformation_specs.h"

namespace reshard {

/// What PEFT puts before every name of the model that it wraps.
inline constexpr std::string_view kPeftPrefix = "base_model.model.";

/// The name of an adapter's tensor, taken apart: "base_model.model.m.lora_A.weight" is the lora_A of
/// "base_model.model.m".
struct LoraName {
  std::string module;
  std::string component;  // "lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector"
  std::string rest;       // "weight", "bias", "weight_q"; in metadata with the adapter's name before it; may be empty
};
/// Nothing for a name that has no such component.
std::optional<LoraName> lora_name(std::string_view name);

/// The adapters that a metadata file speaks of. One file describes all of them.
std::set<std::string> adapter_names(const StageMetadata& metadata);

/// The metadata of one adapter's files: parameters go by the names that they have there, without the adapter's own
/// ("m.lora_A.NAME.weight" is "m.lora_A.weight", "m.modules_to_save.NAME.weight" is "m.weight"), and those of other
/// adapters are gone. Names are held against `adapter` as a whole, whatever is in it.
StageMetadata adapter_metadata(const StageMetadata& metadata, const std::string& adapter);

}  // namespace reshard
