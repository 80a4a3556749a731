#include "reshard/specs/family.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/checked.h"
#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/specs/builtin_families.h"
#include "reshard/specs/transformation_specs.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// The numbers and switches of config.json, with the family's defaults behind them.
class ConfigValues {
 public:
  ConfigValues(const Family& family, const ModelConfig& config) : family_(family), config_(config) {}

  /// The product of an expression such as "num_attention_heads * head_dim / 2": whole numbers and keys, left to right.
  std::uint64_t evaluate(const std::string& expression) const {
    std::uint64_t value = 1;
    char op = '*';
    for (const std::string& word : split(expression, ' ')) {
      if (word == "*" || word == "/") {
        op = word[0];
        continue;
      }
      const auto literal = parse_unsigned(word);
      const std::uint64_t operand = literal ? *literal : number(word);
      if (op == '/' && (operand == 0 || value % operand != 0))
        fail(fmt::format("{} does not come out even: {} / {}", expression, value, operand));
      const auto product = op == '*' ? checked_mul(value, operand) : value / operand;
      if (!product) fail(expression + " overflows 64 bits");
      value = *product;
    }
    return value;
  }

  std::uint64_t number(const std::string& key) const {
    const auto [value, is_default] = lookup(key);
    if (is_default && value->is_string()) return evaluate(value->get<std::string>());
    constexpr std::uint64_t kMaxConfigNumber = std::uint64_t{1} << 40;  // no size of a model comes near
    if (!value->is_number_unsigned() || value->get<std::uint64_t>() == 0 ||
        value->get<std::uint64_t>() > kMaxConfigNumber)
      fail("\"" + key + "\" is " + brief(*value) + ", expected a positive whole number" +
           (value->is_number_unsigned() ? " of at most 2^40" : ""));
    return value->get<std::uint64_t>();
  }

  bool flag(const std::string& key) const {
    const Json* value = lookup(key).first;
    if (!value->is_boolean()) fail("\"" + key + "\" is " + brief(*value) + ", expected true or false");
    return value->get<bool>();
  }

 private:
  /// The key's value, and whether it is the family's default. Only defaults may be expressions.
  std::pair<const Json*, bool> lookup(const std::string& key) const {
    const auto given = config_.json->find(key);
    if (given != config_.json->end() && !given->is_null()) return {&*given, false};
    const auto fallback = family_.defaults->find(key);
    if (fallback == family_.defaults->end()) fail("\"" + key + "\" is missing");
    if (!fallback->is_object()) return {&*fallback, true};
    return {&fallback->at(given == config_.json->end() ? "absent" : "null"), true};
  }

  [[noreturn]] void fail(const std::string& message) const {
    throw Error(ErrorKind::kBadInput, message).in(config_.path);
  }

  const Family& family_;
  const ModelConfig& config_;
};

/// Appends the parameters of one module, for one layer or outside the layers.
void add_module(Model& model, const Family::Module& module, const ConfigValues& values,
                std::optional<std::uint64_t> layer, bool tied) {
  ModelParameter weight;
  weight.module = layer ? expand_layer(module.name, *layer) : module.name;
  weight.name = weight.module + "." + module.parameter;
  try {
    for (const std::string& size : module.shape) weight.shape.push_back(values.evaluate(size));
  } catch (const Error&) {
    if (module.optional) return;  // a buffer that this model cannot have
    throw;
  }
  weight.plan = module.plan;
  weight.optional = module.optional;
  weight.layer = layer;
  weight.on_last_stage = module.on_last_stage;
  if (tied && !module.tied_to.empty()) weight.tied_to = module.tied_to + ".weight";
  const bool has_bias = !module.bias.empty() && (module.bias == "always" || values.flag(module.bias));
  model.parameters.push_back(weight);
  if (!has_bias) return;
  ModelParameter bias = weight;
  bias.name = bias.module + ".bias";
  bias.shape = {weight.shape.front()};
  bias.is_bias = true;
  model.parameters.push_back(std::move(bias));
}

bool is_layered(const Family::Module& module) {
  return module.name.find('*') != std::string::npos;
}

const std::map<std::string, Family>& builtin_families() {
  static const std::map<std::string, Family> families = [] {
    std::map<std::string, Family> parsed;
    for (const BuiltinFamily& file : kBuiltinFamilies) {
      const fs::path path = fs::path("built-in family") / file.name;
      Family family = parse_family(parse_json(file.json, path), path);
      parsed.emplace(family.model_type, std::move(family));
    }
    return parsed;
  }();
  return families;
}

}  // namespace

std::vector<std::string> known_model_types() {
  std::vector<std::string> names;
  for (const auto& [name, family] : builtin_families()) names.push_back(name);
  return names;
}

const Family& find_family(const ModelConfig& config) {
  const auto found = builtin_families().find(config.model_type);
  if (found != builtin_families().end()) return found->second;
  const std::vector<std::string> known = known_model_types();
  throw Error(ErrorKind::kUnsupported, fmt::format("the model_type \"{}\" is not known; known are {}",
                                                   printable(config.model_type), join(known, ", ")))
      .in(config.path)
      .hint("a later version takes a description of your own model with --spec FILE");
}

std::string expand_layer(std::string_view pattern, std::uint64_t layer) {
  std::string name(pattern);
  if (const auto star = name.find('*'); star != std::string::npos) name.replace(star, 1, std::to_string(layer));
  return name;
}

Model instantiate(const Family& family, const ModelConfig& config) {
  constexpr std::uint64_t kMaxLayers = 1 << 14;  // a hostile config must not make the list of parameters endless
  const ConfigValues values(family, config);
  Model model;
  model.family = &family;
  model.layers = values.number("num_hidden_layers");
  if (model.layers > kMaxLayers)
    throw Error(ErrorKind::kBadInput, fmt::format("\"num_hidden_layers\" is {}, more than any model has", model.layers))
        .in(config.path);
  const bool tied = values.flag("tie_word_embeddings");
  if (family.attention) {
    model.heads = values.number("num_attention_heads");
    model.kv_heads = values.number("num_key_value_heads");
    model.head_dim = values.number("head_dim");
    if (model.heads > kMaxHeads || model.kv_heads > kMaxHeads)
      throw Error(ErrorKind::kBadInput, fmt::format("{} attention and {} key/value heads are more than any model has",
                                                    model.heads, model.kv_heads))
          .in(config.path);
    if (model.heads % model.kv_heads != 0)
      throw Error(ErrorKind::kBadInput,
                  fmt::format("{} attention heads do not fall into groups over {} key/value heads", model.heads,
                              model.kv_heads))
          .in(config.path);
  }
  const auto layered_begin = std::find_if(family.modules.begin(), family.modules.end(), is_layered);
  const auto layered_end = std::find_if_not(layered_begin, family.modules.end(), is_layered);
  for (auto it = family.modules.begin(); it != layered_begin; ++it) add_module(model, *it, values, std::nullopt, tied);
  for (std::uint64_t layer = 0; layer < model.layers; ++layer)
    for (auto it = layered_begin; it != layered_end; ++it) add_module(model, *it, values, layer, tied);
  for (auto it = layered_end; it != family.modules.end(); ++it) add_module(model, *it, values, std::nullopt, tied);
  return model;
}

}  // namespace reshard
