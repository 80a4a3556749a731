#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/json_fwd.h"
#include "reshard/layouts/core/checkpoint.h"

namespace reshard {

/// The layers of a model that are left when others are dropped.
struct KeptLayers {
  std::string prefix;               // Family::layers
  std::vector<std::uint64_t> kept;  // their numbers in the source, ascending
  std::uint64_t count = 0;          // number of layers of the source, without those of multi-token prediction
  std::uint64_t all = 0;            // with them
  std::string key;                  // key of config.json with `count`
  std::string more;                 // key with the number of layers of multi-token prediction; empty: none
  /// Keys by which some layer that is kept has another kind of attention under its new number.
  std::vector<std::string> kinds;
  std::vector<std::string> lists;  // keys that the family uses
  /// Patterns of names in quantization_config that contain numbers of layers, which are not changed.
  std::vector<std::string> patterns;

  bool are_first() const { return kept.empty() || kept.back() + 1 == kept.size(); }
};

/// Returns the layers that keep some tensor; std::nullopt if these are all or none, or if the model or the
/// key with the number of its layers is unknown.
std::optional<KeptLayers> find_kept_layers(const Checkpoint& source, const std::vector<bool>& dropped);

/// Returns the name with the number that its layer has among those that are kept. Names in other layers stay.
std::string renumbered(const std::string& name, const KeptLayers& kept);

/// Returns the name before `renumbered`. Names in layers beyond the number of those that are kept stay.
std::string name_before_renumbering(const std::string& name, const KeptLayers& kept);

/// Sets the number of layers in `config` and the configurations of language models in it, and cuts the lists that have
/// a value per layer, or numbers of layers, and the patterns that have a character per layer. Modules in
/// quantization_config get the new numbers of their layers. \returns the keys that changed.
std::vector<std::string> set_layers(OrderedJson& config, const KeptLayers& kept);

/// Replaces the source's model by that of the tensors `wanted`, which are in the layers that are kept.
/// \throws Error kBadInput if config.json then makes no sense.
void cut_model(Checkpoint& source, const KeptLayers& kept, std::span<const LogicalTensor> wanted);

}  // namespace reshard
