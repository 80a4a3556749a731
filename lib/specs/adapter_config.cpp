#include "reshard/specs/adapter_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <regex>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/storage.h"
#include "reshard/base/strings.h"
#include "reshard/specs/adapter_metadata.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{4} << 20;
constexpr std::uint64_t kMaxRank = std::uint64_t{1} << 20;
constexpr std::size_t kMaxPattern = 1000;  // the regular expressions of the standard library recurse

/// What a joined linear needs: the rows of its lora_A, and an alpha that gives the scale of its originals.
struct RankAndAlpha {
  std::uint64_t r = 0;
  double alpha = 0;

  friend bool operator==(const RankAndAlpha&, const RankAndAlpha&) = default;
};

/// PEFT's get_pattern_key: re.match(rf"(.*\.)?({key})$", name).
bool pattern_matches(const std::string& key, const std::string& module, const fs::path& path) {
  const bool plain = key.find_first_of("^$*+?()[]{}|\\") == std::string::npos;
  if (plain) return module == key || module.ends_with("." + key);
  try {
    if (key.size() > kMaxPattern) throw std::regex_error(std::regex_constants::error_complexity);
    return std::regex_match(module, std::regex("(.*\\.)?(" + key + ")"));
  } catch (const std::regex_error&) {
    throw Error(ErrorKind::kUnsupported, "its pattern \"" + printable(key) + "\" is not understood").in(path);
  }
}

template <typename Value>
Value first_match(const std::vector<std::pair<std::string, Value>>& patterns, const std::string& module, Value fallback,
                  const fs::path& path) {
  for (const auto& [key, value] : patterns)
    if (pattern_matches(key, module, path)) return value;
  return fallback;
}

std::uint64_t rank_value(const OrderedJson& json, const std::string& key, const fs::path& path) {
  if (!json.is_number_unsigned() || json.get<std::uint64_t>() == 0 || json.get<std::uint64_t>() > kMaxRank)
    throw Error(ErrorKind::kBadInput,
                fmt::format("\"{}\" is {}, expected a rank from 1 to {}", printable(key), brief(Json(json)), kMaxRank))
        .in(path);
  return json.get<std::uint64_t>();
}

double alpha_value(const OrderedJson& json, const std::string& key, const fs::path& path) {
  if (!json.is_number() || !std::isfinite(json.get<double>()))
    throw Error(ErrorKind::kBadInput, fmt::format("\"{}\" is {}, expected a number", printable(key), brief(Json(json))))
        .in(path);
  return json.get<double>();
}

/// The members of an object that may be absent or null.
template <typename Read>
void read_patterns(const OrderedJson& json, const char* key, const fs::path& path, Read&& read) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return;
  if (!found->is_object())
    throw Error(ErrorKind::kBadInput, fmt::format("\"{}\" is {}, expected an object", key, brief(Json(*found))))
        .in(path);
  for (const auto& [pattern, value] : found->items()) read(pattern, value);
}

FusedLayer fused_layer(const ModuleSpecs& module, const TransformationSpec& spec) {
  std::string prefix = module.module_fully_qualified_name + ".";
  if (prefix.starts_with(kPeftPrefix)) prefix.erase(0, kPeftPrefix.size());
  FusedLayer layer;
  if (const auto* fused = std::get_if<FusedLinearsSpec>(&spec)) {
    layer = {prefix + fused->fused_linear_name, fused->linear_names};
  } else {
    const auto& gqa = std::get<GQAQKVColumnParallelLinearSpec>(spec);
    layer = {prefix + gqa.gqa_qkv_projection_name,
             {gqa.query_projection_name, gqa.key_projection_name, gqa.value_projection_name}};
  }
  for (std::string& linear : layer.linears) linear.insert(0, prefix);
  return layer;
}

RankAndAlpha fused_rank(const AdapterConfig& config, const FusedLayer& layer, LoraFuse fuse) {
  const std::string& first = layer.linears.front();
  const std::uint64_t first_r = config.rank_of(first);
  const double first_alpha = config.alpha_of(first);
  RankAndAlpha fused;
  for (const std::string& linear : layer.linears) {
    const std::uint64_t r = config.rank_of(linear);
    const double alpha = config.alpha_of(linear);
    // alpha / r, or alpha / sqrt(r), without the rounding of a division
    const double square = config.use_rslora ? 2 : 1;
    const bool same_scale = std::pow(alpha, square) * static_cast<double>(first_r) ==
                            std::pow(first_alpha, square) * static_cast<double>(r);
    const bool same_rank = fuse == LoraFuse::kExact || r == first_r;
    if (!same_rank || !same_scale)
      throw Error(
          ErrorKind::kBadInput,
          fmt::format("{} becomes one linear, but {} has a rank of {} and a lora_alpha of {}, {} of {} and {}, "
                      "which is not the same {}",
                      layer.module, first, first_r, first_alpha, linear, r, alpha, same_rank ? "scale" : "rank"))
          .in(config.path)
          .hint(same_rank ? "" : "--lora-fuse exact takes different ranks of one scale");
    fused.r += r;
  }
  if (fuse == LoraFuse::kMean) return {first_r, first_alpha};
  const double growth = static_cast<double>(fused.r) / static_cast<double>(first_r);
  fused.alpha = first_alpha * (config.use_rslora ? std::sqrt(growth) : growth);
  return fused;
}

OrderedJson number(double value) {
  constexpr double kWhole = 9007199254740992.0;  // 2^53
  if (std::trunc(value) == value && std::abs(value) < kWhole) return static_cast<std::int64_t>(value);
  return value;
}

/// `patterns` with entries in front, which decide before all others.
template <typename Value>
void put_first(OrderedJson& config, const char* key, const std::vector<std::pair<std::string, Value>>& entries) {
  OrderedJson patterns = OrderedJson::object();
  for (const auto& [name, value] : entries) patterns[name] = value;
  if (const auto old = config.find(key); old != config.end() && old->is_object())
    for (const auto& [name, value] : old->items())
      if (!patterns.contains(name)) patterns[name] = value;
  config[key] = std::move(patterns);
}

/// The layers' own names where all of a name are alike ("gate_up_proj"), else those with all that stands before them.
std::vector<std::pair<std::string, RankAndAlpha>> entries_of(const std::map<std::string, RankAndAlpha>& layers) {
  std::map<std::string, std::optional<RankAndAlpha>> by_own_name;  // nothing where they differ
  const auto own_name = [](const std::string& module) { return module.substr(module.rfind('.') + 1); };
  for (const auto& [module, fused] : layers) {
    const auto [found, is_new] = by_own_name.emplace(own_name(module), fused);
    if (!is_new && found->second != fused) found->second.reset();
  }
  std::vector<std::pair<std::string, RankAndAlpha>> entries;
  for (const auto& [name, fused] : by_own_name)
    if (fused) entries.emplace_back(name, *fused);
  for (const auto& [module, fused] : layers)
    if (!by_own_name.at(own_name(module))) entries.emplace_back(module, fused);
  return entries;
}

}  // namespace

std::uint64_t AdapterConfig::rank_of(const std::string& module) const {
  return first_match(rank_pattern, module, r, path);
}

double AdapterConfig::alpha_of(const std::string& module) const {
  return first_match(alpha_pattern, module, lora_alpha, path);
}

bool AdapterConfig::saves(const std::string& module) const {
  return std::any_of(modules_to_save.begin(), modules_to_save.end(),
                     [&](const std::string& name) { return module == name || module.ends_with("." + name); });
}

AdapterConfig read_adapter_config(const fs::path& path) {
  AdapterConfig config;
  config.path = path;
  config.text = read_text_file(path, kMaxConfigBytes);
  const Json proved = parse_json(config.text, path);
  const JsonObject object(proved, path);
  const OrderedJson json = OrderedJson::parse(config.text);  // patterns are tried in their order
  const Json peft_type = object.has("peft_type") ? object.at("peft_type") : Json("LORA");
  if (peft_type != "LORA" && peft_type != "lora")
    throw Error(ErrorKind::kUnsupported, "is of a " + brief(peft_type) + " adapter; only LORA is known").in(path);
  if (object.has("r")) config.r = rank_value(json.at("r"), "r", path);
  if (object.has("lora_alpha")) config.lora_alpha = alpha_value(json.at("lora_alpha"), "lora_alpha", path);
  if (object.has("use_rslora")) config.use_rslora = object.bool_at("use_rslora");
  read_patterns(json, "rank_pattern", path, [&](const std::string& key, const OrderedJson& value) {
    config.rank_pattern.emplace_back(key, rank_value(value, key, path));
  });
  read_patterns(json, "alpha_pattern", path, [&](const std::string& key, const OrderedJson& value) {
    config.alpha_pattern.emplace_back(key, alpha_value(value, key, path));
  });
  if (object.has("modules_to_save") && !object.at("modules_to_save").is_null())
    for (const Json& name : object.array_at("modules_to_save")) {
      if (!name.is_string()) object.fail("modules_to_save", "an array of names");
      config.modules_to_save.push_back(name.get<std::string>());
    }
  return config;
}

std::vector<FusedLayer> fused_layers(const StageMetadata& metadata) {
  std::vector<FusedLayer> layers;
  for (const ModuleSpecs& module : metadata.modules)
    for (const TransformationSpec& spec : module.specs) layers.push_back(fused_layer(module, spec));
  return layers;
}

void stack_ranks(StageMetadata& metadata, const AdapterConfig& config) {
  for (ModuleSpecs& module : metadata.modules)
    for (TransformationSpec& spec : module.specs) {
      std::vector<std::uint64_t> ranks;
      for (const std::string& linear : fused_layer(module, spec).linears) ranks.push_back(config.rank_of(linear));
      std::visit([&](auto& s) { s.stacked_ranks = ranks; }, spec);
    }
}

std::string fused_config_text(const AdapterConfig& config, const std::vector<FusedLayer>& layers, LoraFuse fuse) {
  std::map<std::string, RankAndAlpha> wanted;
  for (const FusedLayer& layer : layers) {
    const RankAndAlpha fused = fused_rank(config, layer, fuse);
    const RankAndAlpha said{config.rank_of(layer.module), config.alpha_of(layer.module)};
    if (fuse == LoraFuse::kExact || fused != said) wanted.emplace(layer.module, fused);
  }
  if (wanted.empty()) return config.text;
  std::vector<std::pair<std::string, std::uint64_t>> ranks;
  std::vector<std::pair<std::string, OrderedJson>> alphas;
  for (const auto& [name, fused] : entries_of(wanted)) {
    ranks.emplace_back(name, fused.r);
    alphas.emplace_back(name, number(fused.alpha));
  }
  OrderedJson json = OrderedJson::parse(config.text);
  put_first(json, "rank_pattern", ranks);
  put_first(json, "alpha_pattern", alphas);
  return json.dump(2);
}

}  // namespace reshard
