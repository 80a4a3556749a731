#include "reshard/plan/transforms/kept_layers.h"

#include <algorithm>
#include <memory>
#include <set>
#include <unordered_set>

#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/core/tied_tensors.h"
#include "reshard/specs/config/model_config.h"
#include "reshard/specs/family/family.h"
#include "reshard/specs/model/language_model.h"

namespace reshard {
namespace {

/// Returns the layer of a tensor's name; std::nullopt if it is outside the layers.
std::optional<std::uint64_t> layer_in(std::string_view name, std::string_view layers) {
  if (!name.starts_with(layers) || !name.substr(layers.size()).starts_with('.')) return std::nullopt;
  name.remove_prefix(layers.size() + 1);
  return parse_unsigned(name.substr(0, name.find('.')), kMaxLayers - 1);
}

/// Returns the number of layers after which their kinds repeat, according to a value of config.json; 0 if none.
std::uint64_t period_in(const Json& value) {
  if (value.is_string()) return value.get_ref<const std::string&>().size();  // "LLLG"
  return value.is_number_unsigned() ? value.get<std::uint64_t>() : 0;
}

/// Keys of config.json by which every nth layer has another attention, whose parameters have the same shapes.
constexpr const char* kPeriodKeys[] = {"sliding_window_pattern", "no_rope_layer_interval",
                                       "global_attn_every_n_layers"};

/// Returns the keys by which a layer has another kind of attention under its new number.
std::vector<std::string> keys_of_kinds(const Json& config, const KeptLayers& layers) {
  std::vector<std::string> keys;
  if (const Json* const types = find_key(config, "layer_types"); types != nullptr && types->is_array()) return keys;
  const auto add_if = [&](const char* key, const auto& kind) {
    for (std::uint64_t i = 0; i < layers.kept.size(); ++i)
      if (kind(i) != kind(layers.kept[i])) return keys.emplace_back(key), void();
  };
  for (const char* key : kPeriodKeys) {
    const Json* const value = find_key(config, key);
    if (const std::uint64_t period = value != nullptr ? period_in(*value) : 0)
      add_if(key, [&](std::uint64_t layer) { return layer % period; });
  }
  constexpr const char* kFull = "max_window_layers";  // the first layers, without a window
  const Json* const uses_window = find_key(config, "use_sliding_window");
  const Json* const full = find_key(config, kFull);
  if (uses_window != nullptr && *uses_window == true && full != nullptr && full->is_number_unsigned())
    add_if(kFull, [&](std::uint64_t layer) { return layer < full->get<std::uint64_t>(); });
  return keys;
}

/// Returns the keys of config.json that the expressions of a family use.
std::vector<std::string> keys_of(const Family& family) {
  std::set<std::string> keys;
  const auto add = [&](const Expression& expression) {
    if (!expression) return;
    for (std::string& key : expression.keys()) keys.insert(std::move(key));
  };
  for (const auto& [name, expression] : family.definitions) add(expression);
  for (const Family::Module& module : family.modules) {
    for (const Expression& size : module.shape) add(size);
    for (const Expression* one : {&module.bias, &module.when, &module.heads, &module.experts, &module.items}) add(*one);
    for (const Family::Packed& packed : module.packed) add(packed.size);
  }
  return {keys.begin(), keys.end()};
}

/// Whether the list contains numbers of layers.
template <typename AnyJson>
bool is_list_of_layers(const AnyJson& list, std::uint64_t layers) {
  std::int64_t last = -1;
  for (const AnyJson& item : list) {
    if (!item.is_number_integer() || item.template get<std::int64_t>() <= last ||
        item.template get<std::int64_t>() >= static_cast<std::int64_t>(layers))
      return false;
    last = item.template get<std::int64_t>();
  }
  return true;
}

/// \returns whether the list changed.
template <typename AnyJson>
bool cut_list(AnyJson& list, const KeptLayers& layers) {
  AnyJson left = AnyJson::array();
  if (is_list_of_layers(list, layers.all)) {
    const std::set<std::uint64_t> listed(list.begin(), list.end());
    for (std::size_t i = 0; i < layers.kept.size(); ++i)
      if (listed.count(layers.kept[i]) > 0) left.push_back(i);
  } else if (list.size() == layers.count || list.size() == layers.all) {
    for (const std::uint64_t layer : layers.kept)
      if (layer < list.size()) left.push_back(list[layer]);
  } else {
    return false;
  }
  if (left == list) return false;
  list = std::move(left);
  return true;
}

/// Changes one level of a configuration.
template <typename AnyJson>
void set_level(AnyJson& config, const KeptLayers& layers, std::vector<std::string>& changed) {
  const auto usual = static_cast<std::uint64_t>(
      std::count_if(layers.kept.begin(), layers.kept.end(), [&](std::uint64_t one) { return one < layers.count; }));
  const auto set = [&](const std::string& key, std::uint64_t old, std::uint64_t now) {
    const auto found = config.find(key);
    if (found == config.end() || *found != old || old == now) return;
    *found = now;
    changed.push_back(key);
  };
  if (const auto found = config.find(layers.key); found == config.end() || *found != layers.count) return;
  for (auto& [key, value] : config.items())
    if (value.is_array() && (key.find("layer") != key.npos ||
                             std::find(layers.lists.begin(), layers.lists.end(), key) != layers.lists.end()))
      if (cut_list(value, layers)) changed.push_back(key);
  set(layers.key, layers.count, usual);
  if (!layers.more.empty()) set(layers.more, layers.all - layers.count, layers.kept.size() - usual);
}

template <typename AnyJson>
std::vector<std::string> set_levels(AnyJson& config, const KeptLayers& layers) {
  std::vector<std::string> changed;
  for (AnyJson* level = &config; level != nullptr && level->is_object();) {
    set_level(*level, layers, changed);
    AnyJson* inner = nullptr;
    for (const char* key : kTextConfigs)
      if (const auto found = level->find(key); found != level->end() && inner == nullptr) inner = &*found;
    level = inner;
  }
  return changed;
}

}  // namespace

std::optional<KeptLayers> find_kept_layers(const Checkpoint& source, const std::vector<bool>& dropped) {
  const Family* const family = source.model ? source.model->family.get() : nullptr;
  if (family == nullptr || family->layers.empty() || !source.adapters.empty() || source.model->by_config_plan ||
      source.language_model.config.json == nullptr)
    return std::nullopt;
  std::set<std::uint64_t> kept;
  for (std::size_t i = 0; i < source.map.logical.size(); ++i)
    if (const auto layer = layer_in(source.map.logical[i].name, family->layers);
        layer && *layer < source.model->layers && !dropped[i])
      kept.insert(*layer);
  if (kept.empty() || kept.size() == source.model->layers) return std::nullopt;
  KeptLayers layers;
  layers.kept.assign(kept.begin(), kept.end());
  layers.all = source.model->layers;
  const std::vector<std::string> counts = family->num_layers ? family->num_layers.keys() : std::vector<std::string>();
  if (counts.empty()) return std::nullopt;
  layers.key = counts.front();
  const Json* const count = find_key(*source.language_model.config.json, layers.key);
  if (count == nullptr || !count->is_number_unsigned()) return std::nullopt;
  layers.count = count->get<std::uint64_t>();
  if (layers.count > layers.all || (layers.count < layers.all && counts.size() != 2)) return std::nullopt;
  if (layers.count < layers.all) layers.more = counts.back();
  layers.lists = keys_of(*family);
  layers.kinds = keys_of_kinds(*source.language_model.config.json, layers);
  return layers;
}

std::string renumbered(const std::string& name, std::string_view layers, const KeptLayers& kept) {
  const auto layer = layer_in(name, layers);
  if (!layer) return name;
  const auto place = std::lower_bound(kept.kept.begin(), kept.kept.end(), *layer);
  if (place == kept.kept.end() || *place != *layer) return name;
  const std::size_t begin = layers.size() + 1;
  const std::size_t end = std::min(name.find('.', begin), name.size());
  return name.substr(0, begin) + std::to_string(place - kept.kept.begin()) + name.substr(end);
}

std::vector<std::string> set_layers(OrderedJson& config, const KeptLayers& kept) {
  return set_levels(config, kept);
}

void cut_model(Checkpoint& source, const KeptLayers& kept, std::span<const LogicalTensor> wanted) {
  Json config = *source.language_model.config.json;
  set_levels(config, kept);
  source.language_model.config.json = std::make_shared<const Json>(std::move(config));
  std::unordered_set<std::string_view> names;
  for (const LogicalTensor& tensor : wanted) names.insert(tensor.name);
  Model model = instantiate(source.language_model, names);
  model.family_from = source.model->family_from;
  model.tied_by_files = source.model->tied_by_files;
  untie_held(model, wanted);
  source.model = std::move(model);
}

}  // namespace reshard
