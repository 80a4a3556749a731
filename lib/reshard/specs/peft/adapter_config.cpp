#include "reshard/specs/peft/adapter_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/pattern.h"
#include "reshard/base/strings.h"
#include "reshard/io/text_file.h"
#include "reshard/specs/config/model_config.h"
#include "reshard/specs/peft/adapter_metadata.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxRank = std::uint64_t{1} << 20;

template <typename Value>
Value first_match(const std::vector<std::pair<std::string, Value>>& patterns, const std::string& module, Value fallback,
                  const fs::path& path) {
  for (const auto& [key, value] : patterns)
    if (pattern_matches(key, module, path)) return value;
  return fallback;
}

std::uint64_t rank_at(const JsonObject& object, const std::string& key) {
  const Json& value = object.at(key);
  if (!value.is_number_unsigned() || value == 0u || value > kMaxRank)
    object.fail(key, fmt::format("a rank from 1 to {}", kMaxRank));
  return value.get<std::uint64_t>();
}

double alpha_at(const JsonObject& object, const std::string& key) {
  const Json& value = object.at(key);
  if (!value.is_number() || !std::isfinite(value.get<double>())) object.fail(key, "a number");
  return value.get<double>();
}

/// The members of an object that may be absent or null, in the order of the text, in which patterns are tried.
template <typename ValueAt, typename Value>
void read_patterns(const JsonObject& object, const OrderedJson& ordered, const char* key, const ValueAt& value_at,
                   std::vector<std::pair<std::string, Value>>& patterns) {
  if (!object.has(key) || object.at(key).is_null()) return;
  object.object_at(key);  // which proves that it is one
  const JsonObject members = object.child(object.at(key), {}, key);
  for (const auto& item : ordered.at(key).items()) patterns.emplace_back(item.key(), value_at(members, item.key()));
}

FusedLayer fused_layer(const ModuleSpecs& module, const TransformationSpec& spec) {
  const std::string prefix(without_peft_prefix(module.module_fully_qualified_name + "."));
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

/// Whether a key without operators matches `module`: the whole name, or its last parts. A dot matches any character, as
/// in a regular expression.
bool plain_matches(std::string_view key, std::string_view module) {
  if (key.size() > module.size()) return false;
  const std::size_t begin = module.size() - key.size();
  if (begin != 0 && module[begin - 1] != '.') return false;
  return std::equal(key.begin(), key.end(), module.begin() + static_cast<std::ptrdiff_t>(begin),
                    [](char wanted, char held) { return wanted == held || wanted == '.'; });
}

}  // namespace

bool is_peft_weights_name(std::string_view name) {
  return std::any_of(std::begin(kPeftWeights), std::end(kPeftWeights),
                     [&](const FormatRow& weights) { return weights.name == name; });
}

bool is_plain_pattern(std::string_view key) {
  return key.find_first_of(kPatternOperators) == std::string_view::npos;
}

bool pattern_matches(const std::string& key, const std::string& module, const fs::path& path) {
  if (is_plain_pattern(key)) return plain_matches(key, module);
  try {
    return Pattern("(.*\\.)?(" + key + ")").matches_all_of(module);
  } catch (const Error& error) {
    throw Error(ErrorKind::kUnsupported, "cannot use its pattern \"" + printable(key) + "\": " + error.message())
        .in(path)
        .hint(error.hint());
  }
}

std::uint64_t AdapterConfig::rank_of(const std::string& module) const {
  return first_match(rank_pattern, module, r, path);
}

double AdapterConfig::alpha_of(const std::string& module) const {
  constexpr double kUsualAlpha = 8;
  return first_match(alpha_pattern, module, lora_alpha.value_or(kUsualAlpha), path);
}

bool AdapterConfig::saves(const std::string& module) const {
  return std::any_of(modules_to_save.begin(), modules_to_save.end(),
                     [&](const std::string& name) { return module == name || module.ends_with("." + name); });
}

AdapterConfig read_adapter_config(Files& files, const fs::path& path) {
  return parse_adapter_config(read_text_file(files, path, kMaxConfigBytes), path);
}

AdapterConfig parse_adapter_config(std::string text, const fs::path& path) {
  AdapterConfig config;
  config.path = path;
  config.text = std::move(text);
  const Json parsed = parse_json(config.text, path, JsonDialect::kPython);
  const JsonObject object(parsed, path);
  const OrderedJson ordered = parse_ordered_json(config.text, path, JsonDialect::kPython);
  const Json peft_type = object.has("peft_type") ? object.at("peft_type") : Json("LORA");
  if (peft_type != "LORA" && peft_type != "lora")
    throw Error(ErrorKind::kUnsupported, "belongs to a " + brief(peft_type) + " adapter; only LORA is supported")
        .in(path);
  if (object.has("r")) config.r = rank_at(object, "r");
  if (object.has("lora_alpha")) config.lora_alpha = alpha_at(object, "lora_alpha");
  if (object.has("use_rslora")) config.use_rslora = object.bool_at("use_rslora");
  read_patterns(object, ordered, "rank_pattern", rank_at, config.rank_pattern);
  read_patterns(object, ordered, "alpha_pattern", alpha_at, config.alpha_pattern);
  for (const auto& [key, names] : {std::pair("modules_to_save", &config.modules_to_save),
                                   std::pair("target_parameters", &config.target_parameters)})
    if (object.has(key) && !object.at(key).is_null()) *names = object.strings_at(key, "an array of names");
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

}  // namespace reshard
