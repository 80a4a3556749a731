// NxD's settings of an adapter (modules/lora/config.py) and PEFT's.
#include "reshard/specs/peft/lora_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/formats/pickle/pickle_values.h"
#include "reshard/formats/torch/state_dict.h"
#include "reshard/formats/torch/torch_file.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

OrderedJson json_of(const PlainValue& plain) {
  return std::visit(
      [](const auto& value) -> OrderedJson {
        using Held = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<Held, std::monostate>) {
          return nullptr;
        } else if constexpr (std::is_same_v<Held, PlainValue::List>) {
          OrderedJson array = OrderedJson::array();
          for (const PlainValue& item : value) array.push_back(json_of(item));
          return array;
        } else if constexpr (std::is_same_v<Held, PlainValue::Dict>) {
          OrderedJson object = OrderedJson::object();
          for (const auto& [key, item] : value) object[key] = json_of(item);
          return object;
        } else {
          return value;
        }
      },
      plain.value);
}

PlainValue plain_of(const OrderedJson& json) {
  if (json.is_boolean()) return {json.get<bool>()};
  if (json.is_number_integer()) return {json.get<std::int64_t>()};
  if (json.is_number()) return {json.get<double>()};
  if (json.is_string()) return {json.get<std::string>()};
  if (!json.is_array()) return {};
  PlainValue::List list;
  for (const OrderedJson& item : json) list.push_back(plain_of(item));
  return {std::move(list)};
}

/// Returns the value of a key in adapter_config.json, or `absent`.
PlainValue value_in(const OrderedJson& config, const char* key, PlainValue absent) {
  const auto found = config.find(key);
  return found == config.end() || found->is_null() ? std::move(absent) : plain_of(*found);
}

}  // namespace

std::optional<std::string> saved_lora_config(Files& files, const fs::path& path) {
  const TorchFile file = read_torch_file(*files.open(path), path);
  const Pickle& pickle = file.pickle();
  PickleRef state_dict = pickle.root();
  for (int depth = 0; depth < 2 && state_dict != kNoNode && is_mapping(pickle, state_dict); ++depth) {
    const auto items = mapping_items(pickle, state_dict);
    if (const PickleRef config = value_of(pickle, items, kLoraConfigKey, path); config != kNoNode)
      return json_text(json_of(read_plain_value(pickle, config, std::string(kLoraConfigKey), path)));
    state_dict = value_of(pickle, items, "state_dict", path);
  }
  return std::nullopt;
}

std::string peft_config_text(const std::string& settings, const fs::path& path) {
  const OrderedJson saved = parse_ordered_json(settings, path, JsonDialect::kPython);
  const auto required = [&](std::initializer_list<const char*> keys) -> const OrderedJson& {
    for (const char* key : keys)
      if (saved.is_object() && saved.contains(key)) return saved.at(key);
    throw Error(ErrorKind::kBadInput, fmt::format("has no {} in the settings of its LoRA adapter", *keys.begin()))
        .in(path)
        .hint(
            "the scale of the adapter depends on it: set it in an adapter_config.json next to the checkpoint's folder");
  };
  OrderedJson config;
  config["peft_type"] = "LORA";
  config["task_type"] = "CAUSAL_LM";
  config["base_model_name_or_path"] = nullptr;
  config["r"] = required({"lora_rank", "r"});
  config["lora_alpha"] = required({"lora_alpha"});
  for (const char* key : {"lora_dropout", "bias", "use_rslora", "target_modules", "modules_to_save"})
    if (saved.contains(key)) config[key] = saved.at(key);
  config["inference_mode"] = true;
  return json_text(config, 2);
}

std::string named_targets(const AdapterConfig& config, const std::vector<AdaptedModule>& modules) {
  OrderedJson json = parse_ordered_json(config.text, config.path, JsonDialect::kPython);
  if (json.contains("target_modules") && json.at("target_modules").is_array()) return config.text;
  OrderedJson names = OrderedJson::array();
  for (const AdaptedModule& module : modules) names.push_back(module.name);
  json["target_modules"] = std::move(names);
  return json_text(json, 2);
}

std::function<bool(const std::string& name)> added_tensors(const AdapterConfig& config) {
  std::vector<std::string> parts = config.modules_to_save;
  const auto json = parse_ordered_json(config.text, config.path, JsonDialect::kPython);
  if (const auto bias = json.find("bias"); bias != json.end() && *bias == "all") parts.emplace_back("bias");
  return [parts = std::move(parts)](const std::string& name) {
    return std::any_of(parts.begin(), parts.end(),
                       [&](const std::string& part) { return name.find(part) != std::string::npos; });
  };
}

PlainValue::Dict lora_config_value(const AdapterConfig& config, const std::vector<std::string>& modules) {
  const std::string& first = modules.front();
  const std::uint64_t r = config.rank_of(first);
  const double alpha = config.alpha_of(first);
  PlainValue::List targets;
  for (const std::string& module : modules) {
    if (config.rank_of(module) != r || config.alpha_of(module) != alpha)
      throw Error(
          ErrorKind::kUnsupported,
          fmt::format("{} has a rank of {} and a lora_alpha of {}, but {} has {} and {}: NxD has one of each for "
                      "all modules",
                      first, r, alpha, module, config.rank_of(module), config.alpha_of(module)))
          .in(config.path)
          .hint("merge the adapter into the model (merge_and_unload) and shard that");
    PlainValue target{module.substr(module.rfind('.') + 1)};
    if (std::find(targets.begin(), targets.end(), target) == targets.end()) targets.push_back(std::move(target));
  }
  const OrderedJson json = parse_ordered_json(config.text, config.path, JsonDialect::kPython);
  // NxD's own files also have "r", which its LoraConfig does not accept when it loads them.
  return {{"lora_rank", {static_cast<std::int64_t>(r)}},
          {"target_modules", {std::move(targets)}},
          {"lora_alpha", plain_of(alpha_number(alpha))},
          {"lora_dropout", value_in(json, "lora_dropout", {0.0})},
          {"bias", value_in(json, "bias", {std::string("none")})},
          {"use_rslora", {config.use_rslora}},
          {"init_lora_weights", {std::string("default")}},
          {"modules_to_save", value_in(json, "modules_to_save", {})},
          {"merge_lora", {false}},
          {"save_lora_base", {false}},
          {"save_lora_config_adapter", {true}}};
}

}  // namespace reshard
