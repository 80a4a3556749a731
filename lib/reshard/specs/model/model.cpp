#include "reshard/specs/model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <span>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/specs/config/ties.h"
#include "reshard/specs/model/quantization.h"

namespace reshard {
namespace {

constexpr std::uint64_t kMaxExperts = 1 << 14;  // per layer
constexpr std::uint64_t kMaxPacked = 4096;
constexpr const char* kUsualLayers = "num_hidden_layers";  // excludes layers of multi-token prediction

/// The values of config.json, with the family's defaults as fallback.
class ConfigValues {
 public:
  ConfigValues(const Family& family, const ModelConfig& config) : family_(family), config_(config) {}

  /// Sets the layer for the following lookups.
  void set_layer(std::optional<std::uint64_t> layer) {
    layer_ = layer;
    defined_.clear();
  }

 private:
  template <typename Action>
  auto in_config(Action&& action) const {
    try {
      return action();
    } catch (Error& error) {
      if (error.path().empty()) error.in(config_.path);
      throw hinted(std::move(error));
    }
  }

 public:
  std::uint64_t size(const Expression& expression) const {
    return in_config([&] { return expression.size(lookup()); });
  }
  /// Returns a whole number, which may be 0.
  std::uint64_t number(const Expression& expression) const {
    const ConfigValue value = in_config([&] { return expression.value(lookup()); });
    const std::uint64_t* number = std::get_if<std::uint64_t>(&value);
    if (number == nullptr) fail(fmt::format("{} is no whole number", expression.text()));
    return *number;
  }
  bool holds(const Expression& condition) const {
    return in_config([&] { return condition.holds(lookup()); });
  }
  std::uint64_t number(const char* key) const {
    try {
      return size(Expression::parse(key));
    } catch (Error& error) {
      if (const auto [value, is_default] = find(key); is_default && value->is_string())
        error.hint(fmt::format("config.json has no {}, for which family {} uses {}", key, family_.model_type,
                               value->get_ref<const std::string&>()));
      throw;
    }
  }
  bool flag(const char* key) const { return holds(Expression::parse(key)); }

  [[noreturn]] void fail(const std::string& message) const {
    throw hinted(Error(ErrorKind::kBadInput, message).in(config_.path));
  }
  /// Adds a hint. Built-in families work with every config.json of their models, except one that lacks a key and may
  /// belong to another model.
  Error hinted(Error error) const {
    if (error.hint().empty() && family_.file.empty() && !config_.path.empty() && missing_.empty())
      error.hint("use the config.json that came with the weights");
    return error;
  }

  /// Runs `action`, which computes the value that the description has under `key` for `module` (empty: for all
  /// modules). If a user wrote the description, errors name its file and line, because either file may be wrong.
  template <typename Action>
  auto in_description(std::string_view module, const char* key, std::uint64_t line, Action&& action) const {
    if (family_.file.empty()) return action();
    missing_.clear();
    try {
      return action();
    } catch (const Error& error) {
      const std::string fit = config_.path.empty() ? "" : " does not fit " + config_.path.string();
      Error described(error.kind(), fmt::format("{}{}\"{}\"{}: {}", printable(module), module.empty() ? "" : ": ", key,
                                                fit, error.message()));
      described.in(family_.file);
      if (line != 0) described.at_line(line);
      const std::string guess = missing_.empty() ? std::string() : nearest(missing_, known_keys());
      if (!guess.empty())
        described.hint("did you mean \"" + guess + "\"?");
      else if (!missing_.empty() && config_.path.empty())
        described.hint("write the number, add the key to \"defaults\", or give the model's config.json");
      throw described;
    }
  }

 private:
  /// Returns the names that an expression may use.
  std::vector<std::string> known_keys() const {
    std::vector<std::string> keys{"layer"};
    for (const auto& item : config_.json->items()) keys.push_back(item.key());
    for (const auto& item : family_.defaults->items()) keys.push_back(item.key());
    for (const auto& item : family_.definitions) keys.push_back(item.first);
    return keys;
  }

  Expression::Lookup lookup() const {
    return [this](const std::string& key) { return value(key); };
  }

  ConfigValue value(const std::string& key) const {
    if (key == "layer" && layer_) return *layer_;
    if (const auto definition = family_.definitions.find(key); definition != family_.definitions.end())
      return defined(key, definition->second);
    const auto [json, is_default] = find(key);
    if (json->is_null()) return {};
    if (json->is_boolean()) return json->get<bool>();
    if (json->is_number_unsigned()) return json->get<std::uint64_t>();
    if (!is_default || !json->is_string()) return json;
    // Only defaults may be expressions. Values may point into the parsed expression, so it is kept.
    const auto [parsed, is_new] = default_expressions_.try_emplace(json);
    if (is_new) parsed->second = Expression::parse(json->get_ref<const std::string&>());
    return defined(key, parsed->second);
  }

  /// Caches values of defaults and definitions, which many other expressions may use.
  ConfigValue defined(const std::string& key, const Expression& expression) const {
    const auto known = defined_.find(key);
    if (known != defined_.end()) return known->second;
    const ConfigValue value = expression.value(lookup());
    defined_.emplace(key, value);
    return value;
  }

  /// Returns the value of the key, and whether it is the family's default.
  std::pair<const Json*, bool> find(const std::string& key) const {
    const Json* given = find_key(*config_.json, key);
    if (given && !given->is_null()) return {given, false};
    const auto fallback = family_.defaults->find(key);
    if (fallback == family_.defaults->end()) {
      missing_ = given ? std::string() : key;
      const char* const absent = config_.path.empty() ? "\" is missing, as there is no config.json" : "\" is missing";
      fail("\"" + key + (given ? "\" is null, expected a value" : absent));
    }
    if (!fallback->is_object()) return {&*fallback, true};
    return {&fallback->at(given ? "null" : "absent"), true};
  }

  const Family& family_;
  const ModelConfig& config_;
  std::optional<std::uint64_t> layer_;
  mutable std::map<std::string, ConfigValue> defined_;  // values of defaults and definitions that are expressions
  mutable std::map<const Json*, Expression> default_expressions_;
  mutable std::string missing_;  // the last key that was looked up and not found
};

/// Returns the sizes of the matrices in a packed parameter.
std::vector<PackedPart> packed_parts(const Family::Module& module, std::uint64_t size, const ConfigValues& values) {
  if (module.packed.empty()) {
    if (size % 2 != 0)
      values.fail(fmt::format("{} has {} elements along the dim that two halves share", module.name, size));
    return {{size / 2, false}, {size / 2, false}};
  }
  std::vector<PackedPart> parts;
  std::uint64_t sum = 0;
  for (const Family::Packed& packed : module.packed) {
    const std::uint64_t count = packed.count ? values.size(packed.count) : 1;
    if (count > kMaxPacked)
      values.fail(fmt::format("{} packs {} matrices, more than any model has", module.name, count));
    parts.insert(parts.end(), count, {values.size(packed.size), packed.replicated});
    sum += parts.back().size * count;
  }
  if (sum != size)
    values.fail(
        fmt::format("the matrices packed in {} have {} elements together, the whole has {}", module.name, sum, size));
  return parts;
}

/// Returns the parts of a weight that gives each rank several chunks; empty if each rank has one chunk.
std::vector<PackedPart> strided_parts(const Family::Module& module, const ModelParameter& weight,
                                      const ConfigValues& values) {
  const std::uint64_t stride = values.size(module.stride), size = weight.shape[*weight.split_dim];
  if (stride > kMaxPacked) values.fail(fmt::format("{} is more than any model has", stride));
  if (size % stride != 0)
    values.fail(fmt::format("dim {} has {} elements, which are no {} equal parts", *weight.split_dim, size, stride));
  return stride == 1 ? std::vector<PackedPart>() : std::vector<PackedPart>(stride, {size / stride, false});
}

/// Returns the bias of a weight. It belongs to the outputs, so splitting the inputs leaves it whole.
ModelParameter bias_of(const ModelParameter& weight) {
  ModelParameter bias = weight;
  bias.is_bias = true;
  bias.tied_to.clear();
  if (bias.shape.size() > 1) bias.shape.resize(weight.experts != 0 ? bias.shape.size() - 1 : 1);  // else a norm's
  if (splits_outputs(weight.plan)) {
    bias.split_dim = static_cast<std::uint32_t>(bias.shape.size()) - 1;
  } else {
    bias.split_dim.reset();
    bias.packed.clear();
    bias.heads = 0;
  }
  return bias;
}

/// Adds the modules of one layer, or those outside the layers, at a time.
class ModelBuilder {
 public:
  /// `quantization` may be null.
  ModelBuilder(Model& model, ConfigValues& values, SaidTies said, Quantization* quantization, const HoldsName& holds,
               std::uint64_t most)
      : model_(model),
        values_(values),
        said_(std::move(said)),
        quantization_(quantization),
        holds_(holds),
        most_(most) {}

  /// \param layer  layer of the modules; std::nullopt outside the layers.
  void add(std::span<const Family::Module> modules, std::optional<std::uint64_t> layer) {
    values_.set_layer(layer);
    layer_ = layer;
    choose_variant(modules);
    while (!modules.empty()) {
      // Modules of experts are ordered by expert.
      std::size_t count = 1;
      if (modules.front().is_list())
        while (count < modules.size() && modules[count].is_list()) ++count;
      std::vector<Filled> filled;
      for (const Family::Module& module : modules.first(count))
        if (is_of_variant(module))
          if (auto one = fill(module)) filled.push_back(std::move(*one));
      if (modules.front().is_list())
        add_experts(filled);
      else
        for (const Filled& one : filled) add_one(one, layer_name(one), std::nullopt);
      modules = modules.subspan(count);
    }
  }

 private:
  struct Filled {
    const Family::Module* module;
    ModelParameter weight;
    bool has_bias = false;
    std::uint64_t experts = 0;  // or items
    std::uint64_t first = 0;    // number of the first expert or item in names
  };

  /// Returns std::nullopt if the model has no such module.
  std::optional<Filled> fill(const Family::Module& module) {
    const auto at = [&](const char* key, auto&& action) {
      return values_.in_description(module.name, key, module.line, action);
    };
    const auto size_of = [&](const char* key, const Expression& expression) {
      return at(key, [&] { return values_.size(expression); });
    };
    if (!(is_variant_shown_ && !module.variant.empty()) && !is_in_layer(module)) return std::nullopt;
    Filled filled{&module, {}};
    ModelParameter& weight = filled.weight;
    try {
      for (const Expression& size : module.shape) weight.shape.push_back(size_of("shape", size));
    } catch (const Error&) {
      if (module.optional) return std::nullopt;  // a buffer that this model cannot have
      throw;
    }
    weight.plan = module.plan;
    if (module.any_shape) weight.shape_known = ShapeKnown::kNot;
    weight.split_dim = module.dim ? module.dim : split_dim_of(module.plan, weight.shape.size());
    if (is_packed(module.plan))
      weight.packed = at("packed", [&] { return packed_parts(module, weight.shape[*weight.split_dim], values_); });
    if (module.stride) weight.packed = at("stride", [&] { return strided_parts(module, weight, values_); });
    if (module.heads) weight.heads = size_of("heads", module.heads);
    weight.optional = module.optional;
    weight.trained = module.trained;
    weight.layer = layer_;
    weight.stage = module.stage;
    if (shares_weight(module)) weight.tied_to = module.tied_to + ".weight";
    filled.has_bias = module.bias && at("bias", [&] { return values_.holds(module.bias); });
    if (module.experts) weight.experts = size_of(module.stacked ? "stacked_experts" : "experts", module.experts);
    filled.experts = module.items ? size_of("items", module.items) : weight.experts;
    if (module.first_expert) filled.first = at("first_expert", [&] { return values_.number(module.first_expert); });
    if (filled.experts > kMaxExperts || filled.first > kMaxExperts - filled.experts)
      values_.fail(
          fmt::format("{} experts, from number {} on, are more than any model has", filled.experts, filled.first));
    if (module.stacked && weight.shape.front() % filled.experts != 0)
      values_.fail(fmt::format("{} has {} rows, which are not the same for each of {} experts", module.name,
                               weight.shape.front(), filled.experts));
    return filled;
  }

  /// Whether the layer has the module according to the description.
  bool is_in_layer(const Family::Module& module) const {
    return !module.when ||
           values_.in_description(module.name, "when", module.line, [&] { return values_.holds(module.when); });
  }

  bool is_of_variant(const Family::Module& module) const {
    return module.variant.empty() || module.variant == variant_;
  }

  /// Chooses the variant of the modules: the first one with a tensor in the checkpoint, or else the first one whose
  /// condition holds.
  void choose_variant(std::span<const Family::Module> modules) {
    variant_ = {};
    is_variant_shown_ = false;
    for (const Family::Module& module : modules) {
      if (module.variant.empty()) continue;
      if (variant_.empty() && is_in_layer(module)) variant_ = module.variant;
      if (!holds_module(module)) continue;
      variant_ = module.variant;
      is_variant_shown_ = true;  // the tensors decide, not the condition
      return;
    }
  }

  bool holds_module(const Family::Module& module) const {
    if (!holds_) return false;
    const std::string name = expand_layer(layer_ ? expand_layer(module.name, *layer_) : module.name, 0);
    const auto holds_leaf = [&](const std::string& leaf) { return holds_(leaf.empty() ? name : name + "." + leaf); };
    if (holds_leaf(module.parameter)) return true;
    const std::vector<std::string> markers = quantization_ ? quantization_->markers() : std::vector<std::string>();
    return std::any_of(markers.begin(), markers.end(), holds_leaf);
  }

  bool holds_module_named(const std::string& name) const {
    const std::vector<Family::Module>& modules = model_.family->modules;
    return std::any_of(modules.begin(), modules.end(), [&](const Family::Module& module) {
      return module.name == name && module.parameter == "weight" && holds_module(module);
    });
  }

  /// Whether the module shares the weight of Family::Module::tied_to.
  bool shares_weight(const Family::Module& module) {
    if (module.tied_to.empty()) return false;
    if (!holds_) return said_.tied;
    const bool has_head = holds_module(module), has_embedding = holds_module_named(module.tied_to);
    if (module.optional && !has_head) return said_.tied;  // a base model, or a model with another head
    const HeldWeights held = has_head && has_embedding ? HeldWeights::kBoth
                             : has_head                ? HeldWeights::kHead
                             : has_embedding           ? HeldWeights::kEmbedding
                                                       : HeldWeights::kNeither;
    const bool tied = are_tied(said_, held, module.name + ".weight", module.tied_to + ".weight", model_.file_notes);
    if (held != HeldWeights::kNeither && said_.says(!tied)) model_.tied_by_files = tied;
    return tied;
  }

  std::string layer_name(const Filled& filled) const {
    return layer_ ? expand_layer(filled.module->name, *layer_) : filled.module->name;
  }

  void add_experts(const std::vector<Filled>& modules) {
    std::uint64_t begin = kMaxExperts, end = 0;
    for (const Filled& filled : modules) {
      begin = std::min(begin, filled.first);
      end = std::max(end, filled.first + filled.experts);
    }
    for (std::uint64_t number = begin; number < end; ++number)
      for (const Filled& filled : modules)
        if (number >= filled.first && number - filled.first < filled.experts)
          add_one(filled, expand_layer(layer_name(filled), number),
                  filled.module->items ? std::nullopt : std::optional(number - filled.first));
  }

  void add_one(const Filled& filled, std::string name, std::optional<std::uint64_t> expert) {
    matrices_ += 1 + filled.weight.packed.size();
    if (matrices_ > most_)
      values_.fail(
          fmt::format("it asks for more than {} parameters, more than any model of such a checkpoint has", most_));
    ModelParameter weight = filled.weight;
    weight.module = std::move(name);
    weight.expert = expert;
    const std::string& leaf = filled.module->parameter;
    weight.name = leaf.empty() ? weight.module : weight.module + "." + leaf;
    const bool linear =
        weight.shape.size() == 2 && leaf == "weight" && weight.plan != TensorParallelPlan::kEmbeddingRowwise;
    std::optional<ModelParameter> bias;
    if (filled.has_bias) bias = bias_of(weight);
    if (quantization_ && linear)
      quantization_->add_linear(weight, filled.has_bias, holds_, model_.parameters);
    else if (quantization_ && filled.module->stacked)
      quantization_->add_stacked(weight, holds_, model_.parameters);
    else
      model_.parameters.push_back(std::move(weight));
    if (!bias) return;
    bias->name = bias->module + ".bias";
    model_.parameters.push_back(std::move(*bias));
  }

  Model& model_;
  ConfigValues& values_;
  const SaidTies said_;
  Quantization* quantization_;
  const HoldsName& holds_;
  std::uint64_t most_;
  std::uint64_t matrices_ = 0;
  std::optional<std::uint64_t> layer_;
  std::string_view variant_;
  bool is_variant_shown_ = false;
};

/// Returns the declarations of config.json about modules that may share a weight.
SaidTies said_ties(const Family& family, const ConfigValues& values, const ModelConfig& config) {
  const auto tied = std::find_if(family.modules.begin(), family.modules.end(),
                                 [](const Family::Module& module) { return !module.tied_to.empty(); });
  if (tied == family.modules.end()) return {};
  SaidTies said;
  said.tied = values.in_description(tied->name, "tied_to", tied->line, [&] { return values.flag(kTiedKey); });
  said.levels = config.ties;
  said.outer_is_silent = !said.levels.empty() && said.levels.front().first != kTiedKey;
  const Json* own = find_key(*config.json, kTiedKey);
  if (said.levels.empty() && own && own->is_boolean()) said.levels.emplace_back(kTiedKey, said.tied);
  return said;
}

/// Whether heads can be repeated and reordered using only the numbers of heads and their size.
bool has_plain_heads(const Model& model) {
  if (!model.family->attention) return true;
  const Family::Attention& attention = *model.family->attention;
  const std::string query = "." + attention.query;
  return std::none_of(model.parameters.begin(), model.parameters.end(), [&](const ModelParameter& parameter) {
    if (!parameter.name.ends_with(query + ".weight")) return false;
    const auto module = module_in(attention.module, parameter.layer);
    return module && parameter.module == *module + query &&
           (parameter.optional || (!model.quantized && parameter.shape.front() != model.heads * model.head_dim));
  });
}

/// Whether the family itself describes how its models are quantised.
bool knows_quantization(const Family& family) {
  const auto asks = [](const Expression& expression) {
    const std::vector<std::string> keys = expression.keys();
    return std::any_of(keys.begin(), keys.end(),
                       [](const std::string& key) { return key.starts_with("quantization_config"); });
  };
  return std::any_of(family.definitions.begin(), family.definitions.end(),
                     [&](const auto& definition) { return asks(definition.second); }) ||
         std::any_of(family.modules.begin(), family.modules.end(),
                     [&](const Family::Module& module) { return module.when && asks(module.when); });
}

/// Removes layers after the first `usual` ones, from the last on, if the checkpoint has none of their tensors.
/// Transformers does not save the layers of multi-token prediction, although its config.json counts them.
void leave_out_absent_layers(Model& model, std::uint64_t usual, const HoldsName& holds) {
  std::uint64_t layers = usual;
  for (const ModelParameter& parameter : model.parameters)
    if (parameter.layer && *parameter.layer >= layers && holds(parameter.name)) layers = *parameter.layer + 1;
  if (layers == model.layers) return;
  std::erase_if(model.parameters,
                [&](const ModelParameter& parameter) { return parameter.layer && *parameter.layer >= layers; });
  const std::string which = layers + 1 == model.layers ? fmt::format("layer {}", layers)
                                                       : fmt::format("layers {} to {}", layers, model.layers - 1);
  model.file_notes.missing(
      fmt::format("the checkpoint has no tensors of {}, which config.json counts for multi-token prediction", which));
  model.layers = layers;
}

/// Adds the defaults that the family has for keys of `expression` which `config` lacks, and for keys that those need.
void add_defaults(const Family& family, const Json& config, const Expression& expression,
                  std::map<std::string, std::string>& defaults, std::set<std::string>& seen) {
  for (const std::string& key : expression.keys()) {
    if (!seen.insert(key).second) continue;
    if (const auto definition = family.definitions.find(key); definition != family.definitions.end()) {
      add_defaults(family, config, definition->second, defaults, seen);
      continue;
    }
    const Json* given = find_key(config, key);
    const auto fallback = family.defaults->find(key);
    if ((given && !given->is_null()) || fallback == family.defaults->end()) continue;
    const Json& value = fallback->is_object() ? fallback->at(given ? "null" : "absent") : *fallback;
    if (value.is_number_unsigned()) defaults.emplace(key, value.dump());
    if (!value.is_string()) continue;
    defaults.emplace(key, value.get_ref<const std::string&>());
    add_defaults(family, config, Expression::parse(value.get_ref<const std::string&>()), defaults, seen);
  }
}

}  // namespace

std::optional<std::string> module_in(std::string_view pattern, const std::optional<std::uint64_t>& layer) {
  if ((pattern.find('*') != std::string_view::npos) != layer.has_value()) return std::nullopt;
  return layer ? expand_layer(pattern, *layer) : std::string(pattern);
}

std::vector<std::pair<std::string, std::string>> defaults_in_shape(const Model& model,
                                                                   const ModelParameter& parameter) {
  std::map<std::string, std::string> defaults;
  std::set<std::string> seen;
  const std::string module = with_stars(parameter.module);
  if (model.config)
    for (const Family::Module& one : model.family->modules)
      if (one.name == module)
        for (const Expression& size : one.shape) add_defaults(*model.family, *model.config, size, defaults, seen);
  return {defaults.begin(), defaults.end()};
}

bool is_transposed(const ModelParameter& weight) {
  return weight.shape.size() == 2 && weight.split_dim && weight.split_dim != split_dim_of(weight.plan, 2);
}

namespace {

/// \param json  null if there is no config.json.
ModelConfig config_with(std::shared_ptr<const Json> json) {
  if (json == nullptr) return {{}, std::make_shared<const Json>(Json::object()), {}};
  return {kConfigFile, std::move(json), {}};
}

}  // namespace

bool holds_in(const Model& model, const Expression& condition, const std::optional<std::uint64_t>& layer) {
  const ModelConfig config = config_with(model.config);
  ConfigValues values(*model.family, config);
  values.set_layer(layer);
  return values.holds(condition);
}

std::uint64_t number_in(const Family& family, std::shared_ptr<const Json> config, const Expression& number) {
  const ModelConfig content = config_with(std::move(config));
  const ConfigValues values(family, content);
  const std::uint64_t value = values.number(number);
  if (value > UINT32_MAX) values.fail(fmt::format("{} is {}, more than any model has", number.text(), value));
  return value;
}

Model instantiate(std::shared_ptr<const Family> the_family, const ModelConfig& config, const HoldsName& holds,
                  std::uint64_t most, std::size_t usual) {
  const Family& family = *the_family;
  ConfigValues values(family, config);
  Model model;
  model.parameters.reserve(usual);
  model.family = std::move(the_family);
  model.config = config.json;
  if (!family.layers.empty())
    model.layers =
        values.in_description("", "num_layers", family.layers_line, [&] { return values.size(family.num_layers); });
  if (model.layers > kMaxLayers)
    throw Error(ErrorKind::kBadInput,
                fmt::format("\"{}\" is {}, more than any model has", family.num_layers.text(), model.layers))
        .in(config.path);
  SaidTies said = said_ties(family, values, config);
  if (family.attention) {
    values.in_description("", "attention", 0, [&] {
      model.heads = values.number("num_attention_heads");
      model.kv_heads = values.number("num_key_value_heads");
      model.head_dim = values.number("head_dim");
    });
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
  const std::span<const Family::Module> modules = family.modules;
  const auto begin = static_cast<std::size_t>(
      std::find_if(modules.begin(), modules.end(), std::mem_fn(&Family::Module::is_layered)) - modules.begin());
  const auto end = static_cast<std::size_t>(std::find_if_not(modules.begin() + static_cast<std::ptrdiff_t>(begin),
                                                             modules.end(), std::mem_fn(&Family::Module::is_layered)) -
                                            modules.begin());
  std::optional<Quantization> quantization = Quantization::read(config);
  model.quantized = quantization.has_value();
  model.quant_method = quant_method(config);
  if (!knows_quantization(family)) model.quantization_problem = quantization_problem(config);
  ModelBuilder builder(model, values, std::move(said), quantization ? &*quantization : nullptr, holds, most);
  builder.add(modules.first(begin), std::nullopt);
  for (std::uint64_t layer = 0; layer < model.layers; ++layer) builder.add(modules.subspan(begin, end - begin), layer);
  builder.add(modules.subspan(end), std::nullopt);
  const std::vector<std::string> counted = family.num_layers.keys();
  if (holds && counted.size() > 1 && counted.front() == kUsualLayers)
    leave_out_absent_layers(model, values.number(kUsualLayers), holds);
  if (quantization) {
    model.pad_units = quantization->pad_units();
    model.quantization_marker = quantization->usual_marker();
    model.stacked_suffix = quantization->stacked_suffix();
    if (!quantization->note().empty()) model.notes.changed(quantization->note());
  }
  model.plain_heads = has_plain_heads(model);
  return model;
}

}  // namespace reshard
