#include "reshard/specs/config/config_change.h"

#include <fmt/format.h>

#include "reshard/base/json.h"
#include "reshard/specs/config/config_levels.h"

namespace reshard {
namespace {

/// Returns the object that has the last key; null if `config` lacks it.
template <typename AnyJson>
AnyJson* object_of(const ConfigChange& change, AnyJson& config) {
  AnyJson* object = &config;
  for (std::size_t i = 0; i + 1 < change.keys.size() && object != nullptr; ++i) {
    const auto inner = object->is_object() ? object->find(change.keys[i]) : object->end();
    object = inner == object->end() ? nullptr : &*inner;
  }
  return object != nullptr && object->is_object() ? object : nullptr;
}

template <typename AnyJson>
void apply_to_any(const ConfigChange& change, AnyJson& config) {
  AnyJson* const object = object_of(change, config);
  if (object == nullptr) return;
  if (change.value->is_null())
    object->erase(change.keys.back());
  else
    (*object)[change.keys.back()] = AnyJson(*change.value);
}

}  // namespace

void apply_change(const ConfigChange& change, Json& config) {
  apply_to_any(change, config);
}

void apply_change(const ConfigChange& change, OrderedJson& config) {
  apply_to_any(change, config);
}

bool is_applied(const ConfigChange& change, const OrderedJson& config) {
  const OrderedJson* const object = object_of(change, config);
  if (object == nullptr) return false;
  const auto found = object->find(change.keys.back());
  return found == object->end() ? change.value->is_null() : *found == OrderedJson(*change.value);
}

std::vector<ConfigChange> changes_of_key(const Json& config, const std::string& key, const Json& from, const Json& to) {
  std::vector<ConfigChange> changes;
  const auto shared = std::make_shared<const Json>(to);
  for_each_level(config, [&](const Json& level, std::vector<std::string> keys) {
    if (!level.contains(key) || level.at(key) != from) return;
    keys.push_back(key);
    changes.push_back({std::move(keys), shared, fmt::format("\"{}\": {}", key, to.dump())});
  });
  return changes;
}

ConfigChange quantization_change(std::shared_ptr<const Json> quantization) {
  const std::string how = quantization == nullptr ? "not at all" : quantization->dump();
  if (quantization == nullptr) quantization = std::make_shared<const Json>();
  return {{"quantization_config"}, std::move(quantization), "how the weights are quantised: " + how};
}

}  // namespace reshard
