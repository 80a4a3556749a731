#include "reshard/specs/family.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/specs/builtin_files.h"
#include "reshard/specs/family_parser.h"
#include "reshard/specs/quantization.h"
#include "reshard/specs/resolve_family.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxExperts = 1 << 14;  // of a layer
constexpr std::uint64_t kMaxPacked = 4096;

/// The values of config.json, with the family's defaults behind them.
class ConfigValues {
 public:
  ConfigValues(const Family& family, const ModelConfig& config) : family_(family), config_(config) {}

  /// Of which layer is asked from now on.
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
      throw;
    }
  }

 public:
  std::uint64_t size(const Expression& expression) const {
    return in_config([&] { return expression.size(lookup()); });
  }
  bool holds(const Expression& condition) const {
    return in_config([&] { return condition.holds(lookup()); });
  }
  std::uint64_t number(const char* key) const { return size(Expression::parse(key)); }
  bool flag(const char* key) const { return holds(Expression::parse(key)); }

  [[noreturn]] void fail(const std::string& message) const {
    throw Error(ErrorKind::kBadInput, message).in(config_.path);
  }

 private:
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
    // Only a default may be an expression.
    return defined(key, Expression::parse(json->get_ref<const std::string&>()));
  }

  /// What the expressions of defaults and definitions come to may be asked for by many others.
  ConfigValue defined(const std::string& key, const Expression& expression) const {
    const auto known = defined_.find(key);
    if (known != defined_.end()) return known->second;
    const ConfigValue value = expression.value(lookup());
    defined_.emplace(key, value);
    return value;
  }

  /// The key's value, and whether it is the family's default.
  std::pair<const Json*, bool> find(const std::string& key) const {
    const Json* given = config_.json.get();
    for (const std::string& name : split(key, '.')) {
      if (given && given->is_object()) {
        const auto found = given->find(name);
        given = found == given->end() ? nullptr : &*found;
      } else {
        given = nullptr;
      }
    }
    if (given && !given->is_null()) return {given, false};
    const auto fallback = family_.defaults->find(key);
    if (fallback == family_.defaults->end()) fail("\"" + key + "\" is missing");
    if (!fallback->is_object()) return {&*fallback, true};
    return {&fallback->at(given ? "null" : "absent"), true};
  }

  const Family& family_;
  const ModelConfig& config_;
  std::optional<std::uint64_t> layer_;
  mutable std::map<std::string, ConfigValue> defined_;  // defaults and definitions that are expressions
};

/// The sizes of the matrices in a packed one.
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

/// The bias that belongs to a weight: of the outputs, so that what splits the inputs leaves it whole.
ModelParameter bias_of(const ModelParameter& weight) {
  ModelParameter bias = weight;
  bias.is_bias = true;
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

/// Fills the modules in, one place after the other: a layer, or what lies outside the layers.
class ModelBuilder {
 public:
  /// `quantization` may be null.
  ModelBuilder(Model& model, ConfigValues& values, bool tied, Quantization* quantization, const HoldsName& holds)
      : model_(model), values_(values), tied_(tied), quantization_(quantization), holds_(holds) {}

  /// \param layer Where they lie; nothing outside the layers.
  void add(std::span<const Family::Module> modules, std::optional<std::uint64_t> layer) {
    values_.set_layer(layer);
    layer_ = layer;
    while (!modules.empty()) {
      // The modules of experts come expert after expert.
      std::size_t count = 1;
      const auto is_each = [](const Family::Module& module) { return module.experts && !module.stacked; };
      if (is_each(modules.front()))
        while (count < modules.size() && is_each(modules[count])) ++count;
      std::vector<Filled> filled;
      for (const Family::Module& module : modules.first(count))
        if (auto one = fill(module)) filled.push_back(std::move(*one));
      if (is_each(modules.front()))
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
    std::uint64_t experts = 0;
  };

  /// Nothing where the model has no such module.
  std::optional<Filled> fill(const Family::Module& module) const {
    if (module.when && !values_.holds(module.when)) return std::nullopt;
    Filled filled{&module, {}};
    ModelParameter& weight = filled.weight;
    try {
      for (const Expression& size : module.shape) weight.shape.push_back(values_.size(size));
    } catch (const Error&) {
      if (module.optional) return std::nullopt;  // a buffer that this model cannot have
      throw;
    }
    weight.plan = module.plan;
    weight.any_shape = module.any_shape;
    weight.split_dim = module.dim ? module.dim : split_dim_of(module.plan, weight.shape.size());
    if (is_packed(module.plan)) weight.packed = packed_parts(module, weight.shape[*weight.split_dim], values_);
    if (module.heads) weight.heads = values_.size(module.heads);
    weight.optional = module.optional;
    weight.layer = layer_;
    weight.on_last_stage = module.on_last_stage;
    if (tied_ && !module.tied_to.empty()) weight.tied_to = module.tied_to + ".weight";
    filled.has_bias = module.bias && values_.holds(module.bias);
    if (module.experts) filled.experts = values_.size(module.experts);
    if (filled.experts > kMaxExperts)
      values_.fail(fmt::format("{} experts are more than any model has", filled.experts));
    weight.experts = filled.experts;
    if (module.stacked && weight.shape.front() % filled.experts != 0)
      values_.fail(fmt::format("{} has {} rows, which are not the same for each of {} experts", module.name,
                               weight.shape.front(), filled.experts));
    return filled;
  }

  std::string layer_name(const Filled& filled) const {
    return layer_ ? expand_layer(filled.module->name, *layer_) : filled.module->name;
  }

  void add_experts(const std::vector<Filled>& modules) {
    std::uint64_t experts = 0;
    for (const Filled& filled : modules) experts = std::max(experts, filled.experts);
    for (std::uint64_t expert = 0; expert < experts; ++expert)
      for (const Filled& filled : modules)
        if (expert < filled.experts) add_one(filled, expand_layer(layer_name(filled), expert), expert);
  }

  void add_one(const Filled& filled, std::string name, std::optional<std::uint64_t> expert) {
    ModelParameter weight = filled.weight;
    weight.module = std::move(name);
    weight.expert = expert;
    const std::string& leaf = filled.module->parameter;
    weight.name = leaf.empty() ? weight.module : weight.module + "." + leaf;
    const bool linear =
        weight.shape.size() == 2 && leaf == "weight" && weight.plan != TensorParallelPlan::kEmbeddingRowwise;
    if (quantization_ && linear)
      quantization_->add_linear(weight, holds_, model_.parameters);
    else
      model_.parameters.push_back(weight);
    if (!filled.has_bias) return;
    ModelParameter bias = bias_of(weight);
    bias.name = bias.module + ".bias";
    model_.parameters.push_back(std::move(bias));
  }

  Model& model_;
  ConfigValues& values_;
  bool tied_;
  Quantization* quantization_;
  const HoldsName& holds_;
  std::optional<std::uint64_t> layer_;
};

bool is_layered(const Family::Module& module) {
  return module.name.find('*') != std::string::npos;
}

/// Keys of config.json under which a larger model has the configuration of its language model.
constexpr const char* kTextConfigs[] = {"text_config", "llm_config", "language_config", "thinker_config"};
/// Those of other parts; one beside the keys of a language model says that there are such parts.
constexpr const char* kOtherConfigs[] = {"vision_config", "audio_config", "visual", "vit_config"};
/// What the whole configuration says of its language model, too.
constexpr const char* kSharedKeys[] = {"tie_word_embeddings", "quantization_config", "dtype", "torch_dtype"};

const Json* object_at(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_object() ? &*found : nullptr;
}

/// The configuration of the language model in `config`, which may lie deeper than one level; null where it has none.
const Json* text_config(const Json& config) {
  for (const char* key : kTextConfigs)
    if (const Json* part = object_at(config, key)) {
      const Json* deeper = text_config(*part);
      return deeper ? deeper : part;
    }
  return nullptr;
}

}  // namespace

const Family* builtin_family(std::string_view model_type) {
  static std::mutex mutex;
  static std::map<std::string, Family, std::less<>> parsed;
  const std::lock_guard lock(mutex);
  if (const auto known = parsed.find(model_type); known != parsed.end()) return &known->second;
  const auto resolved = builtin_description(std::string(model_type));
  if (!resolved) return nullptr;
  const fs::path path = fs::path("built-in family") / (std::string(model_type) + ".json");
  return &parsed.emplace(model_type, parse_family_text(family_text(*resolved), path)).first->second;
}

namespace {

std::shared_ptr<const Family> shared_builtin(const std::string& model_type) {
  return {std::shared_ptr<const void>(), builtin_family(model_type)};
}

}  // namespace

std::optional<TensorParallelPlan> plan_of_word(std::string_view word) {
  for (const PlanWord& row : kPlanWords)
    if (word == row.word) return row.plan;
  return std::nullopt;
}

std::string plan_words() {
  std::vector<std::string> words;
  for (const PlanWord& row : kPlanWords) words.push_back(row.word);
  return join(words, ", ");
}

std::optional<std::uint32_t> split_dim_of(TensorParallelPlan plan, std::size_t ndim) {
  const auto last = static_cast<std::uint32_t>(ndim) - 1;
  switch (plan) {
    case TensorParallelPlan::kColwise:
    case TensorParallelPlan::kPackedColwise: return ndim == 1 ? 0 : last - 1;
    case TensorParallelPlan::kRowwise:
    case TensorParallelPlan::kPackedRowwise: return last;
    case TensorParallelPlan::kEmbeddingRowwise: return 0;
    case TensorParallelPlan::kReplicate: return std::nullopt;
  }
  return std::nullopt;
}

std::vector<std::string> known_model_types() {
  std::vector<std::string> names;
  for (const BuiltinFile& file : kBuiltinFamilies) names.push_back(fs::path(file.name).stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

LanguageModel find_language_model(const ModelConfig& config, const std::shared_ptr<const Family>& spec) {
  const auto known = [](const std::string& model_type) {
    const Family* family = builtin_family(model_type);
    return family && !family->modules.empty() ? shared_builtin(model_type) : nullptr;
  };
  const Json* part = text_config(*config.json);
  const auto part_type = part ? part->find("model_type") : Json::const_iterator();
  const bool part_has_type = part && part_type != part->end() && part_type->is_string();
  if (spec && spec->modules.empty()) {  // of a larger model: it only says which its language model is
    const bool part_is_known = part_has_type && known(part_type->get<std::string>());
    return find_language_model(config, known(part_is_known ? part_type->get<std::string>() : spec->language_model));
  }
  if (!part || (spec && spec->model_type == config.model_type) || (!part_has_type && known(config.model_type))) {
    LanguageModel model{spec ? spec : known(config.model_type), config};
    model.is_part = std::any_of(std::begin(kOtherConfigs), std::end(kOtherConfigs),
                                [&](const char* key) { return object_at(*config.json, key) != nullptr; });
    return model;
  }
  LanguageModel model{spec, config, true};
  if (part_has_type)
    model.config.model_type = part_type->get<std::string>();
  else if (const Family* larger = builtin_family(config.model_type))
    model.config.model_type = larger->language_model;
  if (!spec) model.family = known(model.config.model_type);
  Json json = *part;
  for (const char* key : kSharedKeys)
    if (!json.contains(key) && config.json->contains(key)) json[key] = config.json->at(key);
  if (model.family && model.family->class_defaults)
    for (const auto& [key, value] : model.family->class_defaults->items())
      if (!json.contains(key)) json[key] = value;
  model.config.json = std::make_shared<const Json>(std::move(json));
  return model;
}

Error unknown_model_type(const ModelConfig& config, const std::vector<std::string>& fitting) {
  const std::string model_type = find_language_model(config).config.model_type;
  Error error(ErrorKind::kUnsupported, fmt::format("the model_type \"{}\" is not known", printable(model_type)));
  error.in(config.path);
  if (fitting.size() == 1)
    return error.hint(fmt::format("its tensors are those of {0}: give `family` {0}", fitting.front()));
  if (!fitting.empty())
    return error.hint(fmt::format("its tensors fit several families, of which you give the right one with `family`: {}",
                                  join(fitting, ", ")));
  const std::string guess = nearest(model_type, known_model_types());
  return error.hint(
      (guess.empty() ? std::string() : "the nearest known is " + guess + "; ") +
      "give a built-in family with `family`, a description of the model with `spec` (`print-family` shows a built-in "
      "one), or put the base_model_tp_plan of its configuration class into config.json");
}

bool is_second_name(std::string_view model_type) {
  for (const BuiltinFile& file : kBuiltinFamilies) {
    if (fs::path(file.name).stem() != model_type) continue;
    const Json json = Json::parse(file.json);
    return json.size() == 2 && json.contains("like");
  }
  return false;
}

namespace {

/// "model." of "model.layers", "" of "layers".
std::string base_of(const std::string& layers) {
  const std::size_t dot = layers.rfind('.');
  return dot == std::string::npos ? std::string() : layers.substr(0, dot + 1);
}

/// The prefixes that `suffix` has in names, each once.
std::vector<std::string> prefixes_before(const std::string& suffix, const std::unordered_set<std::string_view>& names) {
  std::vector<std::string> prefixes;
  for (const std::string_view name : names) {
    if (!name.ends_with(suffix)) continue;
    const std::string_view prefix = name.substr(0, name.size() - suffix.size());
    if (prefix.empty() || prefix.back() == '.') prefixes.emplace_back(prefix);
  }
  std::sort(prefixes.begin(), prefixes.end());
  return prefixes;
}

/// What stands before the language model's head where its base model has the prefix `base`.
std::string prefix_of_head(const std::string& base) {
  constexpr std::string_view kBaseModel = "model.";
  if (base == kBaseModel || !base.ends_with("." + std::string(kBaseModel))) return {};
  return base.substr(0, base.size() - kBaseModel.size());
}

}  // namespace

std::shared_ptr<const Family> with_prefixes_of(std::shared_ptr<const Family> family,
                                               const std::unordered_set<std::string_view>& names) {
  const std::string base = base_of(family->layers);
  const auto embedding =
      std::find_if(family->modules.begin(), family->modules.end(), [&](const Family::Module& module) {
        return module.plan == TensorParallelPlan::kEmbeddingRowwise && module.name.starts_with(base);
      });
  if (embedding == family->modules.end()) return family;
  std::vector<std::string> found =
      prefixes_before(embedding->name.substr(base.size()) + "." + embedding->parameter, names);
  if (found.empty() || std::find(found.begin(), found.end(), base) != found.end()) return family;
  const std::string layers = family->layers.substr(base.size());
  const auto has_layers = [&](const std::string& prefix) {
    return std::any_of(names.begin(), names.end(),
                       [&, start = prefix + layers + "."](std::string_view name) { return name.starts_with(start); });
  };
  if (found.size() > 1) std::erase_if(found, [&](const std::string& prefix) { return !has_layers(prefix); });
  if (found.size() != 1) return family;
  const std::string& own = found.front();

  Family renamed = *family;
  std::string head = prefix_of_head(own);
  for (const Family::Module& module : renamed.modules)
    if (!module.tied_to.empty() && !module.name.starts_with(base))
      if (const auto heads = prefixes_before(module.name + "." + module.parameter, names); heads.size() == 1)
        head = heads.front();
  const auto rename = [&](std::string& name) {
    if (name.empty()) return;
    if (name.starts_with(base))
      name.replace(0, base.size(), own);
    else
      name.insert(0, head);
  };
  rename(renamed.layers);
  for (Family::Module& module : renamed.modules) {
    // A base model alone has no head.
    if (own.empty() && !base.empty() && !module.name.starts_with(base)) module.optional = true;
    rename(module.name);
    rename(module.tied_to);
  }
  if (renamed.attention) rename(renamed.attention->module);
  for (Family::Fused& fused : renamed.fused) rename(fused.module);
  for (std::string& module : renamed.whole) rename(module);
  return std::make_shared<const Family>(std::move(renamed));
}

void add_other_parts(Model& model, const std::unordered_set<std::string_view>& names) {
  std::unordered_set<std::string_view> explained;
  for (const ModelParameter& parameter : model.parameters) explained.insert(parameter.name);
  const std::string layers = model.family->layers + ".";
  std::vector<std::string> others;
  for (const std::string_view name : names)
    if (explained.count(name) == 0 && !name.starts_with(layers)) others.emplace_back(name);
  std::sort(others.begin(), others.end(), natural_less);
  std::vector<ModelParameter> parameters;
  parameters.reserve(others.size() + model.parameters.size());
  for (std::string& name : others) {
    ModelParameter& parameter = parameters.emplace_back();
    parameter.module = name.substr(0, name.rfind('.'));
    parameter.name = std::move(name);
    parameter.any_shape = parameter.optional = true;
  }
  std::move(model.parameters.begin(), model.parameters.end(), std::back_inserter(parameters));
  model.parameters = std::move(parameters);
  model.is_part = true;
}

std::string expand_layer(std::string_view pattern, std::uint64_t layer) {
  std::string name(pattern);
  if (const auto star = name.find('*'); star != std::string::npos) name.replace(star, 1, std::to_string(layer));
  return name;
}

Model instantiate(const ModelConfig& config, const HoldsName& holds) {
  const LanguageModel model = find_language_model(config);
  if (!model.family) throw unknown_model_type(config);
  return instantiate(model.family, model.config, holds);
}

namespace {

/// Adds buffers of rotary embeddings, which old exports of any family carry and which every rank needs.
void add_buffers(Model& model, const std::unordered_set<std::string_view>& names) {
  constexpr std::string_view kBuffer = ".rotary_emb.inv_freq";
  std::vector<std::string> found;
  for (const std::string_view name : names)
    if (name.ends_with(kBuffer)) found.emplace_back(name);
  if (found.empty()) return;
  std::sort(found.begin(), found.end(), natural_less);
  std::unordered_set<std::string_view> explained;
  for (const ModelParameter& parameter : model.parameters)
    if (parameter.name.ends_with(kBuffer)) explained.insert(parameter.name);
  std::erase_if(found, [&](const std::string& name) { return explained.count(name) > 0; });
  const std::string layers = model.family->layers + ".";
  for (std::string& name : found) {
    ModelParameter buffer;
    if (name.starts_with(layers)) {
      const std::string_view rest = std::string_view(name).substr(layers.size());
      buffer.layer = parse_unsigned(rest.substr(0, rest.find('.')), kMaxLayers - 1);
      if (!buffer.layer || *buffer.layer >= model.layers) continue;
    }
    buffer.module = name.substr(0, name.rfind('.'));
    buffer.name = std::move(name);
    buffer.any_shape = buffer.optional = true;
    model.parameters.push_back(std::move(buffer));
  }
}

}  // namespace

namespace {

void add_whole_modules(Model& model, const std::unordered_set<std::string_view>& names) {
  if (model.family->whole.empty()) return;
  std::unordered_set<std::string_view> explained;
  for (const ModelParameter& parameter : model.parameters) explained.insert(parameter.name);
  std::vector<std::string> found;
  for (const std::string_view name : names)
    for (const std::string& module : model.family->whole)
      if (name.starts_with(module + ".") && explained.count(name) == 0) found.emplace_back(name);
  std::sort(found.begin(), found.end(), natural_less);
  for (std::string& name : found) {
    ModelParameter parameter;
    parameter.module = name.substr(0, name.rfind('.'));
    parameter.name = std::move(name);
    parameter.any_shape = parameter.optional = parameter.on_last_stage = true;
    model.parameters.push_back(std::move(parameter));
  }
}

}  // namespace

Model instantiate(const LanguageModel& found, const std::unordered_set<std::string_view>& names) {
  Model model = instantiate(with_prefixes_of(found.family, names), found.config,
                            [&](const std::string& name) { return names.count(name) > 0; });
  add_buffers(model, names);
  add_whole_modules(model, names);
  if (found.is_part) add_other_parts(model, names);
  return model;
}

namespace {

/// Whether heads can be repeated and put in another order by the numbers of heads and their size.
bool has_plain_heads(const Model& model) {
  if (!model.family->attention) return true;
  const Family::Attention& attention = *model.family->attention;
  const std::string query = "." + attention.query;
  return std::none_of(model.parameters.begin(), model.parameters.end(), [&](const ModelParameter& parameter) {
    return parameter.layer && parameter.name.ends_with(query + ".weight") &&
           parameter.module == expand_layer(attention.module, *parameter.layer) + query &&
           (parameter.optional || (!model.quantized && parameter.shape.front() != model.heads * model.head_dim));
  });
}

/// The name that config.json gives the way its weights are quantised; empty where they are not.
std::string quant_method(const ModelConfig& config) {
  const auto found = config.json->find("quantization_config");
  if (found == config.json->end() || !found->is_object() || found->empty()) return {};
  const auto method = found->find("quant_method");
  return method != found->end() && method->is_string() ? method->get<std::string>() : "unknown";
}

}  // namespace

Model instantiate(std::shared_ptr<const Family> the_family, const ModelConfig& config, const HoldsName& holds) {
  const Family& family = *the_family;
  ConfigValues values(family, config);
  Model model;
  model.family = std::move(the_family);
  model.layers = values.size(family.num_layers);
  if (model.layers > kMaxLayers)
    throw Error(ErrorKind::kBadInput,
                fmt::format("\"{}\" is {}, more than any model has", family.num_layers.text(), model.layers))
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
  const std::span<const Family::Module> modules = family.modules;
  const auto begin =
      static_cast<std::size_t>(std::find_if(modules.begin(), modules.end(), is_layered) - modules.begin());
  const auto end = static_cast<std::size_t>(
      std::find_if_not(modules.begin() + static_cast<std::ptrdiff_t>(begin), modules.end(), is_layered) -
      modules.begin());
  std::optional<Quantization> quantization = Quantization::read(config);
  model.quantized = quantization.has_value();
  model.quant_method = quant_method(config);
  ModelBuilder builder(model, values, tied, quantization ? &*quantization : nullptr, holds);
  builder.add(modules.first(begin), std::nullopt);
  for (std::uint64_t layer = 0; layer < model.layers; ++layer) builder.add(modules.subspan(begin, end - begin), layer);
  builder.add(modules.subspan(end), std::nullopt);
  model.plain_heads = has_plain_heads(model);
  return model;
}

}  // namespace reshard
