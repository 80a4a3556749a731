#include "reshard/specs/peft/fused_adapter_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <unordered_set>

#include "reshard/base/error.h"
#include "reshard/base/json.h"

namespace reshard {
namespace {

struct RankAndAlpha {
  std::uint64_t r = 0;
  double alpha = 0;

  friend bool operator==(const RankAndAlpha&, const RankAndAlpha&) = default;
};
using ByModule = std::map<std::string, RankAndAlpha>;
using Entries = std::vector<std::pair<std::string, RankAndAlpha>>;

/// Returns the last component: "gate_proj" of "model.layers.0.mlp.gate_proj".
std::string own_name(const std::string& module) {
  return module.substr(module.rfind('.') + 1);
}

RankAndAlpha said_of(const AdapterConfig& config, const std::string& module) {
  return {config.rank_of(module), config.alpha_of(module)};
}

/// Whether alpha / r, or alpha / sqrt(r), are equal; avoids rounding errors of a division.
bool same_scale(const AdapterConfig& config, const RankAndAlpha& a, const RankAndAlpha& b) {
  const double power = config.use_rslora ? 2 : 1;
  return std::pow(a.alpha, power) * static_cast<double>(b.r) == std::pow(b.alpha, power) * static_cast<double>(a.r);
}

/// Returns the first linear whose scale differs from the layer's first linear, or null.
const std::string* other_scale(const AdapterConfig& config, const FusedLayer& layer) {
  const RankAndAlpha first = said_of(config, layer.linears.front());
  for (const std::string& linear : layer.linears)
    if (!same_scale(config, first, said_of(config, linear))) return &linear;
  return nullptr;
}

/// `can_hint`: LoraFuse::kExact would support what kMean does not.
RankAndAlpha fused_rank(const AdapterConfig& config, const FusedLayer& layer, LoraFuse fuse, bool can_hint) {
  const RankAndAlpha first = said_of(config, layer.linears.front());
  const auto refuse = [&](const std::string& linear, const char* what) {
    const RankAndAlpha other = said_of(config, linear);
    throw Error(
        ErrorKind::kBadInput,
        fmt::format("{} becomes one linear, but {} has a rank of {} and a lora_alpha of {}, {} of {} and {}, "
                    "which is not the same {}",
                    layer.module, layer.linears.front(), first.r, first.alpha, linear, other.r, other.alpha, what))
        .in(config.path)
        .hint(can_hint ? "`lora-fuse` exact fuses different ranks of the same scale" : "");
  };
  std::uint64_t sum = 0;
  for (const std::string& linear : layer.linears) {
    const std::uint64_t r = config.rank_of(linear);
    if (fuse != LoraFuse::kExact && r != first.r) refuse(linear, "rank");
    sum += r;
  }
  if (const std::string* other = other_scale(config, layer)) refuse(*other, "scale");
  if (fuse != LoraFuse::kExact) return first;
  const double growth = static_cast<double>(sum) / static_cast<double>(first.r);
  return {sum, first.alpha * (config.use_rslora ? std::sqrt(growth) : growth)};
}

/// Returns a key that matches the name, and names that end in it.
std::string as_key(const std::string& name) {
  std::string key;
  for (const char c : name) {
    if (kPatternOperators.find(c) != std::string_view::npos) key += '\\';
    key += c;
  }
  return key;
}

/// Whether `name` has a shorter suffix in `modules`, whose key would match it.
bool ends_in(const std::string& name, const ByModule& modules) {
  for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1))
    if (modules.count(name.substr(dot + 1))) return true;
  return false;
}

/// Returns entries that set the modules `wrong`, a subset of `all`, to their values in `all` without changing other
/// modules of `all`: the last component of a name if its modules all have the same value, otherwise the whole name.
Entries entries_of(const std::set<std::string>& wrong, const ByModule& all) {
  std::map<std::string, std::optional<RankAndAlpha>> by_own_name;  // std::nullopt if they differ
  for (const auto& [module, value] : all) {
    const auto [found, is_new] = by_own_name.emplace(own_name(module), value);
    if (!is_new && found->second != value) found->second.reset();
  }
  Entries entries;
  std::set<std::string> short_names;
  ByModule whole_names;
  for (const std::string& module : wrong) {
    const std::string own = own_name(module);
    const auto& alike = by_own_name.at(own);
    if (!alike)
      whole_names.emplace(module, all.at(module));
    else if (short_names.insert(own).second)
      entries.emplace_back(as_key(own), *alike);
  }
  Entries whole;
  for (const auto& [module, value] : all)
    if (whole_names.count(module) || ends_in(module, whole_names)) whole.emplace_back(module, value);
  // Longest first: a key matches no shorter name, but the key of a shorter name may match a longer one.
  std::stable_sort(whole.begin(), whole.end(),
                   [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
  for (auto& [module, value] : whole) entries.emplace_back(as_key(module), value);
  return entries;
}

/// Puts the entries before all others, because the first match is used. Both patterns get the same keys: older versions
/// of PEFT find a key in one of them and look it up in the other.
void put_first(OrderedJson& config, const Entries& entries, const std::set<std::string>& dropped) {
  const auto put = [&](const char* name, const auto& value_of) {
    OrderedJson patterns = OrderedJson::object();
    for (const auto& [key, value] : entries) patterns[key] = value_of(value);
    if (const auto old = config.find(name); old != config.end() && old->is_object())
      for (const auto& [key, value] : old->items())
        if (!patterns.contains(key) && !dropped.count(key)) patterns[key] = value;
    if (config.contains(name) || !patterns.empty()) config[name] = std::move(patterns);
  };
  put("rank_pattern", [](const RankAndAlpha& value) { return OrderedJson(value.r); });
  put("alpha_pattern", [](const RankAndAlpha& value) { return alpha_number(value.alpha); });
}

/// Returns the values of the longest key without operators that names the module, if its rank is the module's.
std::optional<RankAndAlpha> named_by_key(const AdapterConfig& config, const AdaptedModule& module) {
  const std::pair<std::string, std::uint64_t>* named = nullptr;
  for (const auto& entry : config.rank_pattern)
    if (is_plain_pattern(entry.first) && pattern_matches(entry.first, module.trained_as, config.path) &&
        (named == nullptr || entry.first.size() > named->first.size()))
      named = &entry;
  if (named == nullptr || named->second != module.r) return std::nullopt;
  for (const auto& [key, alpha] : config.alpha_pattern)
    if (key == named->first) return RankAndAlpha{module.r, alpha};
  return std::nullopt;
}

/// Returns the values that the module was trained with; std::nullopt if the config has another rank. PEFT sorts the
/// keys when it saves, so the first match may differ from the one in training. A key that names a fused linear is used
/// at any position: no model has such a name itself.
std::optional<RankAndAlpha> trained_with(const AdapterConfig& config, const AdaptedModule& module) {
  const auto named = named_by_key(config, module);
  if (named && module.trained_as != module.name) return named;
  const RankAndAlpha said = said_of(config, module.trained_as);
  return said.r == module.r ? said : named;
}

/// Returns the separate linears of each fused linear, in order.
std::map<std::string, std::vector<std::string>> linears_by_fused(const std::vector<AdaptedModule>& modules) {
  std::map<std::string, std::vector<std::string>> linears;
  for (const AdaptedModule& module : modules)
    if (module.trained_as != module.name) linears[module.trained_as].push_back(module.name);
  return linears;
}

/// Returns the keys of patterns that match fused linears, but none of the current modules.
std::set<std::string> idle_keys(const AdapterConfig& config, const std::vector<AdaptedModule>& modules) {
  std::set<std::string> idle;
  const auto look_at = [&](const std::string& key) {
    bool fused = false;
    for (const AdaptedModule& module : modules) {
      if (pattern_matches(key, module.name, config.path)) return;
      fused = fused || pattern_matches(key, module.trained_as, config.path);
    }
    if (fused) idle.insert(key);
  };
  for (const auto& [key, r] : config.rank_pattern) look_at(key);
  for (const auto& [key, alpha] : config.alpha_pattern) look_at(key);
  return idle;
}

/// Replaces fused linears in target_modules by the separate ones. \returns whether there were any.
bool separate_targets(OrderedJson& config, const std::vector<AdaptedModule>& modules) {
  const auto targets = config.find("target_modules");
  if (targets == config.end() || !targets->is_array()) return false;  // a single string is a regular expression
  const auto linears = linears_by_fused(modules);
  OrderedJson separate = OrderedJson::array();
  bool changed = false;
  const auto add = [&](const OrderedJson& target) {
    if (std::find(separate.begin(), separate.end(), target) == separate.end()) separate.push_back(target);
  };
  for (const OrderedJson& target : *targets) {
    const std::string name = target.is_string() ? target.get<std::string>() : std::string();
    const auto named = std::find_if(linears.begin(), linears.end(), [&](const auto& fused) {
      return !name.empty() && (fused.first == name || fused.first.ends_with("." + name));
    });
    if (named == linears.end()) {
      add(target);
      continue;
    }
    changed = true;
    for (const std::string& linear : named->second)
      add(name.substr(0, name.size() - own_name(name).size()) + own_name(linear));
  }
  if (changed) *targets = std::move(separate);
  return changed;
}

}  // namespace

OrderedJson alpha_number(double alpha) {
  constexpr double kWhole = 9007199254740992.0;  // 2^53
  if (std::trunc(alpha) == alpha && std::abs(alpha) < kWhole) return static_cast<std::int64_t>(alpha);
  return alpha;
}

bool can_fuse_exactly(const AdapterConfig& config, const std::vector<FusedLayer>& layers) {
  return std::all_of(layers.begin(), layers.end(),
                     [&](const FusedLayer& layer) { return other_scale(config, layer) == nullptr; });
}

std::string fused_config_text(const AdapterConfig& config, const std::vector<FusedLayer>& layers, LoraFuse fuse) {
  const bool can_hint = fuse == LoraFuse::kMean && can_fuse_exactly(config, layers);
  ByModule all;
  std::set<std::string> wrong;
  for (const FusedLayer& layer : layers) {
    const RankAndAlpha fused = fused_rank(config, layer, fuse, can_hint);
    all.emplace(layer.module, fused);
    if (fuse == LoraFuse::kExact || fused != said_of(config, layer.module)) wrong.insert(layer.module);
  }
  if (wrong.empty()) return config.text;
  OrderedJson json = parse_ordered_json(config.text, config.path, JsonDialect::kPython);
  put_first(json, entries_of(wrong, all), {});
  return json_text(json, 2);
}

SeparateConfig separate_config(const AdapterConfig& config, const std::vector<AdaptedModule>& modules) {
  SeparateConfig separate{config.text, {}};
  ByModule all;
  std::set<std::string> wrong;
  for (const AdaptedModule& module : modules) {
    const auto trained = trained_with(config, module);
    if (!trained) separate.unexplained.push_back(module.name);
    const RankAndAlpha said = said_of(config, module.name);
    all.emplace(module.name, trained.value_or(said));
    if (trained && *trained != said) wrong.insert(module.name);
  }
  const std::set<std::string> idle =
      separate.unexplained.empty() ? idle_keys(config, modules) : std::set<std::string>();
  OrderedJson json = parse_ordered_json(config.text, config.path, JsonDialect::kPython);
  const bool targets = separate_targets(json, modules);
  if (wrong.empty() && idle.empty() && !targets) return separate;
  put_first(json, entries_of(wrong, all), idle);
  separate.text = json_text(json, 2);
  return separate;
}

}  // namespace reshard
