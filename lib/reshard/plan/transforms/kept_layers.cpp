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

constexpr const char* kQuantization = "quantization_config";

/// Returns the layer of a tensor's name; std::nullopt if it is outside the layers.
std::optional<std::uint64_t> layer_in(std::string_view name, std::string_view layers) {
  if (!name.starts_with(layers) || !name.substr(layers.size()).starts_with('.')) return std::nullopt;
  name.remove_prefix(layers.size() + 1);
  return parse_unsigned(name.substr(0, name.find('.')), kMaxLayers - 1);
}

/// Returns the name of a tensor in a layer, with another number of this.
std::string with_layer(const std::string& name, std::string_view layers, std::uint64_t layer) {
  const std::size_t begin = layers.size() + 1;
  const std::size_t end = std::min(name.find('.', begin), name.size());
  return name.substr(0, begin) + std::to_string(layer) + name.substr(end);
}

/// Returns the name under the new number of its layer; std::nullopt if this is not kept.
std::optional<std::string> name_if_kept(const std::string& name, const KeptLayers& kept) {
  const auto layer = layer_in(name, kept.prefix);
  if (!layer) return name;
  const auto place = std::lower_bound(kept.kept.begin(), kept.kept.end(), *layer);
  if (place == kept.kept.end() || *place != *layer) return std::nullopt;
  return with_layer(name, kept.prefix, static_cast<std::uint64_t>(place - kept.kept.begin()));
}

/// Changes the names of modules in `value` at any depth, in lists and as keys, by `name_if_kept`.
template <typename AnyJson>
void renumber_names(AnyJson& value, const KeptLayers& kept) {
  if (!value.is_structured()) return;
  AnyJson left = value.is_array() ? AnyJson::array() : AnyJson::object();
  for (auto& [key, inner] : value.items()) {
    renumber_names(inner, kept);
    const bool is_name = value.is_array() && inner.is_string();
    const auto name = name_if_kept(is_name ? inner.template get<std::string>() : value.is_array() ? "" : key, kept);
    if (!name) continue;
    if (value.is_array())
      left.push_back(is_name ? AnyJson(*name) : std::move(inner));
    else
      left[*name] = std::move(inner);
  }
  value = std::move(left);
}

/// Adds the texts in `value`, at any depth, that contain numbers of layers and are no names of modules.
void add_patterns(const Json& value, const KeptLayers& kept, std::vector<std::string>& patterns) {
  const auto add = [&](const std::string& text) {
    const std::size_t layers = text.find("layers");
    if (layers != text.npos && text.find_first_of("0123456789", layers) != text.npos && !layer_in(text, kept.prefix))
      patterns.push_back(text);
  };
  if (value.is_string()) add(value.get_ref<const std::string&>());
  if (!value.is_structured()) return;
  for (const auto& [key, inner] : value.items()) {
    if (value.is_object()) add(key);
    add_patterns(inner, kept, patterns);
  }
}

/// Returns the number of layers after which their kinds repeat, according to a value of config.json; 0 if none.
std::uint64_t period_in(const Json& value) {
  if (value.is_string()) return value.get_ref<const std::string&>().size();  // "LLLG"
  return value.is_number_unsigned() ? value.get<std::uint64_t>() : 0;
}

/// Keys of config.json by which every nth layer has another attention, whose parameters have the same shapes.
constexpr const char* kPeriodKeys[] = {"sliding_window_pattern", "no_rope_layer_interval",
                                       "global_attn_every_n_layers"};

/// Keys of config.json for the number of layers. Some models have several.
constexpr const char* kLayerCounts[] = {"num_hidden_layers", "num_layers", "n_layers", "n_layer"};

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

/// Cuts a text with a character per layer. \returns whether it changed.
template <typename AnyJson>
bool cut_pattern(AnyJson& value, const KeptLayers& layers) {
  const std::string& all = value.template get_ref<const std::string&>();
  if (all.size() != layers.count && all.size() != layers.all) return false;
  std::string left;
  for (const std::uint64_t layer : layers.kept)
    if (layer < all.size()) left += all[layer];
  if (left == all) return false;
  value = std::move(left);
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

/// Changes the part of a configuration that contains the number of layers.
/// \param number  its key there
template <typename AnyJson>
void set_part(AnyJson& config, const std::string& number, const KeptLayers& layers, std::vector<std::string>& changed) {
  const auto usual = static_cast<std::uint64_t>(
      std::count_if(layers.kept.begin(), layers.kept.end(), [&](std::uint64_t one) { return one < layers.count; }));
  const auto set = [&](const std::string& key, std::uint64_t old, std::uint64_t now) {
    const auto found = config.find(key);
    if (found == config.end() || *found != old || old == now) return;
    *found = now;
    changed.push_back(key);
  };
  if (const auto found = config.find(number); found == config.end() || *found != layers.count) return;
  const auto has_word = [](const std::string& key, const char* word) { return key.find(word) != key.npos; };
  for (auto& [key, value] : config.items()) {
    const bool is_of_family = std::find(layers.lists.begin(), layers.lists.end(), key) != layers.lists.end();
    // Such as rope_theta of step3p5, and not a list of special tokens.
    const bool is_per_layer = (value.size() == layers.all || value.size() == layers.count) && !has_word(key, "token");
    if ((value.is_array() && (is_of_family || is_per_layer || has_word(key, "layer")) && cut_list(value, layers)) ||
        (value.is_string() && is_of_family && has_word(key, "pattern") && cut_pattern(value, layers)))
      changed.push_back(key);
  }
  for (const char* key : kLayerCounts) set(key, layers.count, usual);
  set(number, layers.count, usual);
  if (!layers.more.empty()) set(layers.more, layers.all - layers.count, layers.kept.size() - usual);
}

/// Changes one level of a configuration. KeptLayers::key may lead to a part of it: "decoder.num_hidden_layers".
template <typename AnyJson>
void set_level(AnyJson& config, const KeptLayers& layers, std::vector<std::string>& changed) {
  const std::vector<std::string> path = split(layers.key, '.');
  AnyJson* part = &config;
  for (std::size_t i = 0; i + 1 < path.size(); ++i) {
    const auto found = part->find(path[i]);
    if (found == part->end() || !found->is_object()) return;
    part = &*found;
  }
  set_part(*part, path.back(), layers, changed);
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
  const auto quantization = config.is_object() ? config.find(kQuantization) : config.end();
  if (quantization != config.end() && !layers.are_first()) {
    const AnyJson before = *quantization;
    renumber_names(*quantization, layers);
    if (*quantization != before) changed.emplace_back(kQuantization);
  }
  return changed;
}

/// \throws Error kBadInput for tensors that the model had before layers were left out, and that it lacks now.
void validate_explained_still(const Model& before, const Model& now, const KeptLayers& kept,
                              std::span<const LogicalTensor> wanted, const std::filesystem::path& where) {
  const auto names_of = [](const Model& model) {
    std::unordered_set<std::string_view> names;
    for (const ModelParameter& parameter : model.parameters) names.insert(parameter.name);
    return names;
  };
  const auto had = names_of(before), has = names_of(now);
  std::vector<std::string> lost;
  for (const LogicalTensor& tensor : wanted)
    if (has.count(tensor.name) == 0 && had.count(name_before_renumbering(tensor.name, kept)) > 0)
      lost.push_back(tensor.name);
  if (!lost.empty())
    throw Error(ErrorKind::kBadInput, "without the layers that are left out, config.json does not explain " +
                                          list_names(lost) + ": it has other kinds of layers for these numbers")
        .in(where)
        .hint("leave out other layers");
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
  layers.prefix = family->layers;
  layers.kept.assign(kept.begin(), kept.end());
  layers.all = source.model->layers;
  const std::vector<std::string> counts = family->num_layers ? family->num_layers.keys() : std::vector<std::string>();
  if (counts.empty()) return std::nullopt;
  const Json& config = *source.language_model.config.json;
  layers.key = counts.front();
  if (find_key(config, layers.key) == nullptr)  // the family takes it from another key
    for (const char* key : kLayerCounts)
      if (find_key(config, key) != nullptr) layers.key = key;
  const Json* const count = find_key(config, layers.key);
  if (count == nullptr || !count->is_number_unsigned()) return std::nullopt;
  layers.count = count->get<std::uint64_t>();
  if (layers.count > layers.all || (layers.count < layers.all && counts.size() != 2)) return std::nullopt;
  if (layers.count < layers.all) layers.more = counts.back();
  layers.lists = keys_of(*family);
  if (const Json* const quantization = find_key(config, kQuantization))
    add_patterns(*quantization, layers, layers.patterns);
  layers.kinds = keys_of_kinds(config, layers);
  return layers;
}

std::string renumbered(const std::string& name, const KeptLayers& kept) {
  return name_if_kept(name, kept).value_or(name);
}

std::string name_before_renumbering(const std::string& name, const KeptLayers& kept) {
  const auto layer = layer_in(name, kept.prefix);
  return layer && *layer < kept.kept.size() ? with_layer(name, kept.prefix, kept.kept[*layer]) : name;
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
  validate_explained_still(*source.model, model, kept, wanted, source.path);
  source.model = std::move(model);
}

}  // namespace reshard
