#include "reshard/specs/model/quantization.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/specs/family/builtin_files.h"
#include "reshard/specs/model/model.h"

namespace reshard {

struct QuantizationScheme {
  /// The dim that belongs to the outputs or inputs of the linear, and how many of them one element covers.
  struct Along {
    int dim = -1;  // -1: none
    Expression per;
  };
  struct Parameter {
    std::string name;
    bool has_shape = false;
    std::vector<Expression> shape;
    Along outputs, inputs;
    Expression when;
    bool scalar = false;
    bool optional = false;
    bool factor = false;
  };
  Expression when;
  std::string refused;
  std::string marker;
  std::string stacked_suffix;
  std::string note;
  Expression note_when;
  std::map<std::string, Expression, std::less<>> definitions;
  std::map<std::string, Json> keys;
  std::vector<Parameter> parameters;
  Json undeclared;  // values in a quantization_config; null if the method's checkpoints always have one
};

namespace {

constexpr std::size_t kMaxGroups = 64;
constexpr std::uint64_t kMaxBlock = 1 << 20;
constexpr std::uint64_t kMaxPadUnit = std::uint64_t{1} << 40;
constexpr std::string_view kWeights = "weights.";
constexpr const char* kUnquantized =
    "use the checkpoint from before it was quantised, and quantise it when it is loaded";

/// A file of lib/reshard/specs/quantizations.
struct Method {
  std::map<std::string, Json> keys;
  std::shared_ptr<const Json> defaults;
  std::vector<std::shared_ptr<const QuantizationScheme>> schemes;
  std::string only_family;  // family whose description covers this method; it has no schemes
  bool dtype_of_others = false;
  std::vector<std::string> kept;  // last parts of names
  std::string kept_beside;        // last part of another name; may be empty
  std::string codes, scales;      // suffixes, or empty
  Json undeclared;                // key of quantization_config → dtype of weights → value
};

Expression expression_at(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? Expression() : Expression::parse(found->get_ref<const std::string&>());
}

QuantizationScheme::Along along_at(const Json& parameter, const char* key) {
  const auto found = parameter.find(key);
  if (found == parameter.end()) return {};
  return {found->at("dim").get<int>(), expression_at(*found, "per")};
}

QuantizationScheme parse_scheme(const Json& json) {
  QuantizationScheme scheme;
  scheme.when = expression_at(json, "when");
  scheme.refused = json.value("refused", "");
  if (!scheme.refused.empty()) return scheme;
  scheme.marker = json.at("marker").get<std::string>();
  scheme.stacked_suffix = json.value("stacked_suffix", "");
  scheme.note = json.value("note", "");
  scheme.note_when = expression_at(json, "note_when");
  if (json.contains("keys")) scheme.keys = json.at("keys").get<std::map<std::string, Json>>();
  scheme.undeclared = json.value("undeclared", Json());
  if (json.contains("define"))
    for (const auto& [name, text] : json.at("define").items())
      scheme.definitions.emplace(name, Expression::parse(text.get_ref<const std::string&>()));
  for (const Json& one : json.at("parameters")) {
    QuantizationScheme::Parameter& parameter = scheme.parameters.emplace_back();
    parameter.name = one.at("name").get<std::string>();
    parameter.has_shape = one.contains("shape");
    if (parameter.has_shape)
      for (const Json& size : one.at("shape"))
        parameter.shape.push_back(Expression::parse(size.get_ref<const std::string&>()));
    parameter.outputs = along_at(one, "outputs");
    parameter.inputs = along_at(one, "inputs");
    parameter.when = expression_at(one, "when");
    parameter.scalar = one.value("scalar", false);
    parameter.optional = one.value("optional", false);
    parameter.factor = one.value("factor", false);
  }
  return scheme;
}

/// The methods, keyed by name.
const std::map<std::string, Method>& methods() {
  static const std::map<std::string, Method> kKnown = [] {
    std::map<std::string, Method> all;
    const auto add = [&](const Json& json) {
      Method method;
      if (json.contains("keys")) method.keys = json.at("keys").get<std::map<std::string, Json>>();
      method.defaults = std::make_shared<const Json>(json.value("defaults", Json::object()));
      method.only_family = json.value("only_family", "");
      method.dtype_of_others = json.value("dtype_of_others", false);
      method.kept = json.value("kept", std::vector<std::string>());
      method.kept_beside = json.value("kept_beside", "");
      method.codes = json.value("codes", "");
      method.scales = json.value("scales", "");
      method.undeclared = json.value("undeclared", Json::object());
      for (const Json& scheme : json.at("schemes"))
        method.schemes.push_back(std::make_shared<const QuantizationScheme>(parse_scheme(scheme)));
      all.emplace(json.at("quant_method").get<std::string>(), std::move(method));
    };
    for (const BuiltinFile& file : kBuiltinQuantizations) {
      const Json json = parse_json(file.json, std::filesystem::path("built-in quantisation") / file.name);
      if (json.is_array())
        std::for_each(json.begin(), json.end(), add);
      else
        add(json);
    }
    return all;
  }();
  return kKnown;
}

bool is_block(const Json& value) {
  return value.is_number_unsigned() && value != 0 && value.get<std::uint64_t>() <= kMaxBlock;
}

/// The quantization_config, with one of its config_groups.
struct Values {
  std::filesystem::path path;
  std::shared_ptr<const Json> config;
  const Json* group = nullptr;  // in `config`; its keys take precedence over those of `config`
  const Json* defaults = nullptr;

  const Json* find(std::string_view key) const {
    if (key.starts_with(kWeights)) return group ? value_at(group->at("weights"), key.substr(kWeights.size())) : nullptr;
    if (group != nullptr)
      if (const Json* own = value_at(*group, key); own && !own->is_null()) return own;
    if (const Json* given = value_at(*config, key)) return given;
    return value_at(*defaults, key);
  }

  /// Returns null if the key is absent or -1.
  ConfigValue operator()(const std::string& key) const {
    const Json* value = find(key);
    if (value == nullptr || value->is_null() || *value == -1) return {};
    if (value->is_boolean()) return value->get<bool>();
    if (value->is_number_unsigned()) return value->get<std::uint64_t>();
    return value;
  }

  /// \throws Error kBadInput if the value is not among those that `wanted` describes.
  void validate(const std::string& key, const Json& wanted) const {
    const Json* value = find(key);
    const std::string name = key.starts_with(kWeights) ? key.substr(kWeights.size()) : key;
    const auto fail = [&](const std::string& expected) {
      const std::string found = value ? "is " + brief(*value) + ", expected " + expected : "is missing";
      throw Error(ErrorKind::kBadInput, fmt::format("quantization_config: \"{}\" {}", name, found)).in(path);
    };
    if (wanted.is_array()) {
      std::vector<std::string> choices;
      for (const Json& choice : wanted) choices.push_back(choice.dump());
      if (value != nullptr && std::find(wanted.begin(), wanted.end(), *value) != wanted.end()) return;
      if (value != nullptr && value->is_number_unsigned())
        throw Error(ErrorKind::kUnsupported, fmt::format("quantization_config: \"{}\" is {}; supported are {}", name,
                                                         brief(*value), join(choices, ", ")))
            .in(path)
            .hint(kUnquantized);
      fail("one of " + join(choices, ", "));
    } else if (value == nullptr || value->is_null()) {
      return;
    } else if (wanted == "group") {
      if (*value != -1 && !is_block(*value)) fail("a group of at least 1, or -1 for one group");
    } else if (wanted == "blocks") {
      if (!value->is_array() || value->size() != 2 || !is_block((*value)[0]) || !is_block((*value)[1]))
        fail("two sizes");
    } else if (wanted == "switch") {
      if (!value->is_boolean()) fail("true or false");
    }
  }

 private:
  static const Json* value_at(const Json& object, std::string_view key) {
    const auto found = object.find(key);
    return found == object.end() ? nullptr : &*found;
  }
};

/// Returns the config_groups that describe the quantisation of weights, without duplicates; null for the whole
/// configuration if it has no groups.
/// \throws Error kBadInput, naming config.json and the key.
std::vector<const Json*> groups_of(const Json& config, const std::filesystem::path& path) {
  const JsonObject object(config, path, "quantization_config");
  if (!object.has("config_groups")) return {nullptr};
  std::vector<const Json*> groups;
  for (const auto& item : object.object_at("config_groups").items()) {
    const JsonObject group(item.value(), path, "config_groups");
    if (!group.has("weights") || item.value().at("weights").is_null()) continue;  // activations alone
    group.object_at("weights");
    const Json& weights = group.at("weights");
    const auto says_the_same = [&](const Json* other) {
      return other->at("weights") == weights && other->value("format", Json()) == item.value().value("format", Json());
    };
    if (std::none_of(groups.begin(), groups.end(), says_the_same)) groups.push_back(&item.value());
    if (groups.size() > kMaxGroups)
      throw Error(ErrorKind::kBadInput, "quantization_config: \"config_groups\" has more groups than any model has")
          .in(path)
          .hint("config.json is damaged, or belongs to another model");
  }
  return groups;
}

/// Quantisation of the model, as config.json declares it.
struct Reading {
  std::string method;                         // "unknown" if it has no name; empty: not quantised
  std::optional<QuantizationProblem> damage;  // problem in the configuration
  const Method* known = nullptr;
  std::shared_ptr<const Json> config;
  std::vector<std::pair<std::shared_ptr<const QuantizationScheme>, Values>> schemes;  // applicable schemes
  std::string refused;                                                                // why no scheme applies
};

bool is_mlx(const Json& quantization) {
  const auto has = [&](const char* key) { return quantization.contains(key); };
  // Older files of AutoGPTQ and AutoAWQ also have the first two keys, and no quant_method.
  return quantization.is_object() && has("bits") && has("group_size") && !has("quant_method") && !has("desc_act") &&
         !has("sym") && !has("zero_point");
}

/// The quantization_config, which older versions of mlx-lm call "quantization"; nullptr if it is absent.
const Json* quantization_in(const Json& config) {
  if (const auto found = config.find("quantization_config"); found != config.end() && !found->is_null()) return &*found;
  const auto found = config.find("quantization");
  return found != config.end() && is_mlx(*found) ? &*found : nullptr;
}

/// Returns the method whose format AutoRound wrote, from its packing_format ("auto_round:auto_gptq"); otherwise
/// `method`.
std::string packed_by(const Json& quantization, const std::string& method) {
  const Json packing = quantization.value("packing_format", Json());
  if (!method.ends_with("auto-round") || !packing.is_string()) return method;
  for (const char* other : {"gptq", "awq"})
    if (packing.get_ref<const std::string&>().ends_with(other)) return other;
  return method;
}

/// Returns the quant_method of a quantization_config. ModelOpt may declare its name as the producer instead, and mlx-lm
/// declares none. Null if unknown.
Json method_name(const Json& quantization) {
  if (const auto name = quantization.find("quant_method"); name != quantization.end())
    return name->is_string() ? Json(packed_by(quantization, *name)) : *name;
  if (const auto producer = quantization.find("producer"); producer != quantization.end() && producer->is_object())
    if (const auto name = producer->find("name"); name != producer->end()) return *name;
  return is_mlx(quantization) ? Json("mlx") : Json();
}

Reading read_quantization(const ModelConfig& config) {
  Reading reading;
  const Json* const found = quantization_in(*config.json);
  if (found == nullptr || found->is_null() || (found->is_object() && found->empty())) return reading;
  const auto damaged = [&](const std::string& what) {
    reading.damage = QuantizationProblem{fmt::format("in {}, {}", config.path.filename().string(), what),
                                         "use the config.json that came with the weights", ErrorKind::kBadInput};
    return reading;
  };
  if (!found->is_object()) return damaged("\"quantization_config\" is " + brief(*found) + ", expected an object");
  reading.method = "unknown";
  const Json name = method_name(*found);
  if (name.is_null()) return damaged("\"quantization_config\" has no \"quant_method\"");
  if (!name.is_string()) return damaged("\"quant_method\" is " + brief(name) + ", expected a string");
  reading.method = name.get<std::string>();
  reading.config = std::shared_ptr<const Json>(config.json, found);
  const auto method = methods().find(reading.method);
  if (method == methods().end()) return reading;
  reading.known = &method->second;
  const bool has_groups = std::any_of(reading.known->keys.begin(), reading.known->keys.end(),
                                      [](const auto& key) { return key.first.starts_with(kWeights); });
  const std::vector<const Json*> groups =
      has_groups ? groups_of(*reading.config, config.path) : std::vector<const Json*>{nullptr};
  for (const auto& scheme : reading.known->schemes) {
    for (const Json* group : groups) {
      const Values values{config.path, reading.config, group, reading.known->defaults.get()};
      for (const auto& [key, wanted] : reading.known->keys) values.validate(key, wanted);
      if (scheme->when && !scheme->when.holds(values)) continue;
      if (!scheme->refused.empty()) {
        if (reading.refused.empty()) reading.refused = scheme->refused;
        continue;
      }
      for (const auto& [key, wanted] : scheme->keys) values.validate(key, wanted);
      if (!reading.schemes.empty() && reading.schemes.back().first == scheme) {
        reading.schemes.clear();
        reading.refused = "several of its config_groups quantise weights in different ways under the same names";
        return reading;
      }
      reading.schemes.emplace_back(scheme, values);
    }
  }
  return reading;
}

/// Returns a tensor of the module of `weight` that is split like the linear.
/// \param dim  the dim that belongs to the split outputs or inputs of the linear; -1: none.
/// \param per  number of these per element.
ModelParameter part_of(const ModelParameter& weight, const char* leaf, const Dims& shape, int dim, std::uint64_t per) {
  ModelParameter part = weight;
  part.name = weight.module + "." + leaf;
  part.shape = shape;
  part.split_dim.reset();
  part.packed.clear();
  part.heads = 0;
  part.tied_to.clear();
  part.is_bias = std::string_view(leaf) == "bias";
  if (!weight.split_dim || dim < 0 || per == 0) return part;
  part.split_dim = static_cast<std::uint32_t>(dim);
  part.heads = weight.heads;
  part.linear_size = weight.shape[*weight.split_dim];
  part.block = per;
  part.partial_block = part.linear_size % per != 0;
  for (const PackedPart& packed : weight.packed) {
    part.partial_block = part.partial_block || packed.size % per != 0;
    part.packed.push_back({packed.size / per, packed.replicated});
  }
  if (part.partial_block) part.packed.clear();
  return part;
}

}  // namespace

std::optional<Quantization> Quantization::read(const ModelConfig& config) {
  const Reading reading = read_quantization(config);
  if (reading.schemes.empty()) return std::nullopt;
  Quantization quantization;
  quantization.path_ = config.path;
  for (const auto& [scheme, values] : reading.schemes) {
    quantization.schemes_.push_back({scheme, values, {}});
    if (!scheme->note.empty() && scheme->note_when.holds(values)) quantization.note_ = scheme->note;
    for (const QuantizationScheme::Parameter& parameter : scheme->parameters)
      quantization.stores_weights_ = quantization.stores_weights_ || parameter.name == "weight";
  }
  quantization.usual_marker_ = quantization.schemes_.front().scheme->marker;
  return quantization;
}

const std::vector<Quantization::Part>& Quantization::parts_of(Applied& applied, std::uint64_t out, std::uint64_t in) {
  const auto [found, is_new] = applied.parts.try_emplace({out, in});
  if (!is_new) return found->second;
  const QuantizationScheme& scheme = *applied.scheme;
  const Expression::Lookup lookup = [&](const std::string& key) -> ConfigValue {
    if (key == "outputs") return out;
    if (key == "inputs") return in;
    const auto defined = scheme.definitions.find(key);
    return defined != scheme.definitions.end() ? defined->second.value(lookup) : applied.config(key);
  };
  try {
    for (const QuantizationScheme::Parameter& parameter : scheme.parameters) {
      if (parameter.when && !parameter.when.holds(lookup)) continue;
      Part part;
      part.leaf = parameter.name.c_str();
      part.is_weight = parameter.name == "weight" && !parameter.has_shape;
      part.optional = parameter.optional;
      part.factor = parameter.factor;
      if (parameter.scalar)
        part.shape_known = ShapeKnown::kOneElement;
      else if (!parameter.has_shape && !part.is_weight)
        part.shape_known = ShapeKnown::kNot;
      for (const Expression& size : parameter.shape) part.shape.push_back(size.size(lookup));
      if (parameter.scalar) part.shape = {1};
      part.out_dim = parameter.outputs.dim;
      part.in_dim = parameter.inputs.dim;
      if (part.out_dim >= 0) part.per_out = parameter.outputs.per.size(lookup);
      if (part.in_dim >= 0) part.per_in = parameter.inputs.per.size(lookup);
      found->second.push_back(std::move(part));
    }
  } catch (Error& error) {
    throw error.in(path_);
  }
  return found->second;
}

void Quantization::add_linear(const ModelParameter& weight, bool has_bias, const HoldsName& holds,
                              std::vector<ModelParameter>& parameters) {
  const auto has = [&](const std::string& leaf) { return holds && holds(weight.module + "." + leaf); };
  const auto applied =
      std::find_if(schemes_.begin(), schemes_.end(), [&](const Applied& one) { return has(one.scheme->marker); });
  if (applied == schemes_.end()) {
    parameters.push_back(weight);
    parameters.back().plain = stores_weights_;
    return;
  }
  usual_marker_ = applied->scheme->marker;
  const bool transposed = is_transposed(weight);
  const std::size_t out = transposed ? 1 : 0;
  const bool of_outputs = weight.split_dim == out;
  for (const Part& part : parts_of(*applied, weight.shape[out], weight.shape[1 - out])) {
    if (part.optional && !has(part.leaf)) continue;
    if (std::string_view(part.leaf) == "bias" && has_bias) continue;
    if (part.is_weight) {
      parameters.push_back(weight);
      continue;
    }
    ModelParameter& added =
        parameters.emplace_back(part_of(weight, part.leaf, part.shape, of_outputs ? part.out_dim : part.in_dim,
                                        of_outputs ? part.per_out : part.per_in));
    added.shape_known = part.shape_known;
    added.optional = part.optional;
    note_unit(added);
  }
}

void Quantization::note_unit(const ModelParameter& parameter) {
  if (!parameter.split_dim) return;
  std::uint64_t& unit = pad_units_.try_emplace(parameter.linear_size, 1).first->second;
  unit = std::lcm(unit, parameter.block);
  if (unit > kMaxPadUnit)
    throw Error(ErrorKind::kBadInput,
                "quantization_config: the sizes of groups and blocks have no common multiple that "
                "a model could have")
        .in(path_);
}

void Quantization::add_stacked(const ModelParameter& weight, const HoldsName& holds,
                               std::vector<ModelParameter>& parameters) {
  const std::size_t index = parameters.size();
  parameters.push_back(weight);
  if (!holds || weight.shape.size() != 3) return;
  for (Applied& applied : schemes_) {
    const std::string& suffix = applied.scheme->stacked_suffix;
    if (suffix.empty()) continue;
    parameters[index].plain = !holds(weight.name + suffix);
    if (parameters[index].plain) continue;
    // A family does not declare which dim is the inputs; for square blocks this does not matter.
    const std::vector<Part>& parts = parts_of(applied, weight.shape[1], weight.shape[2]);
    const auto scale = std::find_if(parts.begin(), parts.end(), [&](const Part& part) {
      return part.leaf == applied.scheme->marker && part.shape.size() == 2;
    });
    if (scale == parts.end() || scale->per_out != scale->per_in)
      throw Error(ErrorKind::kUnsupported, "stacked experts are quantised in blocks that are not square")
          .in(path_)
          .hint(kUnquantized);
    const std::uint32_t split = weight.split_dim.value_or(0);
    ModelParameter part = part_of(weight, "", {weight.shape[0], scale->shape[0], scale->shape[1]},
                                  static_cast<int>(split), split == 0 ? 1 : scale->per_out);
    part.name = weight.name + suffix;
    note_unit(part);
    parameters.push_back(std::move(part));
    return;
  }
}

std::optional<Quantization::Scaled> Quantization::scaled(const std::string& weight, const Dims& shape,
                                                         const HoldsName& holds) {
  if (shape.size() != 2 && shape.size() != 3) return std::nullopt;
  const bool is_stack = shape.size() == 3;
  const std::string module = weight.substr(0, weight.rfind('.') + 1);
  if (!is_stack && weight != module + "weight") return std::nullopt;
  const std::uint64_t outputs = shape[shape.size() - 2], inputs = shape.back();
  for (Applied& applied : schemes_) {
    const auto& [scheme, config, parts] = applied;
    if (is_stack ? scheme->stacked_suffix.empty() || !holds(weight + scheme->stacked_suffix)
                 : !holds(module + scheme->marker))
      continue;
    Scaled scaled;
    for (const Part& part : parts_of(applied, outputs, inputs)) {
      const bool is_one = part.shape_known == ShapeKnown::kOneElement;
      if (part.factor)
        scaled = {is_stack ? weight + scheme->stacked_suffix : module + part.leaf,
                  is_one             ? 0
                  : part.out_dim < 0 ? outputs
                                     : part.per_out,
                  is_one            ? 0
                  : part.in_dim < 0 ? inputs
                                    : part.per_in,
                  std::move(scaled.others)};
      else if (!part.is_weight && !is_stack && holds(module + part.leaf))
        scaled.others.push_back(module + part.leaf);
    }
    return scaled.scales.empty() ? std::nullopt : std::optional(std::move(scaled));
  }
  return std::nullopt;
}

std::string Quantization::stacked_suffix() const {
  for (const Applied& applied : schemes_)
    if (!applied.scheme->stacked_suffix.empty()) return applied.scheme->stacked_suffix;
  return {};
}

std::vector<std::string> Quantization::markers() const {
  std::vector<std::string> names;
  for (const Applied& applied : schemes_) names.push_back(applied.scheme->marker);
  return names;
}

namespace {

/// Returns the methods that can be partitioned, sorted.
std::vector<std::string> known_methods() {
  std::vector<std::string> names;
  for (const auto& [name, method] : methods()) {
    const auto& schemes = method.schemes;
    if (std::any_of(schemes.begin(), schemes.end(), [](const auto& scheme) { return scheme->refused.empty(); }))
      names.push_back(name);
    else if (!method.only_family.empty())
      names.push_back(fmt::format("{} ({} alone)", name, method.only_family));
  }
  return names;
}

/// Returns the values of the keys that distinguish the schemes of the method.
std::string deciding_values(const Reading& reading) {
  std::set<std::string> keys;
  for (const auto& scheme : reading.known->schemes)
    for (std::string& key : scheme->when ? scheme->when.keys() : std::vector<std::string>())
      keys.insert(std::move(key));
  std::vector<std::string> values;
  for (const std::string& key : keys)
    if (const auto found = reading.config->find(key); found != reading.config->end())
      values.push_back(fmt::format("\"{}\" is {}", key, brief(*found)));
  if (values.empty() && reading.config->contains("config_groups")) return "its config_groups quantise no weights";
  return values.empty() ? "none of its keys says how" : join(values, ", ");
}

}  // namespace

std::optional<QuantizationProblem> quantization_problem(const ModelConfig& config) {
  const Reading reading = read_quantization(config);
  if (reading.damage) return reading.damage;
  if (reading.method.empty() || !reading.schemes.empty()) return std::nullopt;
  if (!reading.known)
    return QuantizationProblem{fmt::format("the model is quantised by \"{}\", which is not supported; supported are {}",
                                           printable(reading.method), join(known_methods(), ", ")),
                               "describe its tensors with `spec`"};
  if (!reading.refused.empty())
    return QuantizationProblem{
        fmt::format("the model is quantised by {}, which cannot be partitioned: {}", reading.method, reading.refused),
        kUnquantized};
  return QuantizationProblem{
      fmt::format("the model is quantised by {} in an unsupported way: {}", reading.method, deciding_values(reading)),
      kUnquantized};
}

bool is_quantized_tensor(std::string_view name) {
  const std::string_view leaf = name.substr(name.rfind('.') + 1);
  for (const auto& [method, known] : methods())
    for (const auto& scheme : known.schemes)
      if (scheme->marker.size() > std::string_view("scale").size() && leaf == scheme->marker) return true;
  return false;
}

std::optional<CodedWeight> coded_weight(std::string_view name, DType dtype) {
  if (dtype != DType::kU8) return std::nullopt;
  for (const auto& [method, known] : methods())
    for (const std::string& suffix : {known.codes, known.scales}) {
      if (suffix.empty() || !name.ends_with(suffix)) continue;
      const std::string weight(name.substr(0, name.size() - suffix.size()));
      return CodedWeight{method, weight, weight + known.codes, weight + known.scales};
    }
  return std::nullopt;
}

void QuantizationEvidence::add(std::string_view name, DType dtype, const Dims& shape) {
  static const std::set<std::string, std::less<>> kMarkers = [] {
    std::set<std::string, std::less<>> markers;
    for (const auto& [method, known] : methods())
      for (const auto& scheme : known.schemes)
        if (!scheme->undeclared.is_null()) markers.insert(scheme->marker);
    return markers;
  }();
  if (coded_weight(name, dtype)) coded_.emplace(name);
  const std::size_t dot = name.rfind('.');
  if (dot == name.npos) return;
  if (name.substr(dot + 1) == "weight" && bits(dtype) <= 8 && shape.size() == 2)
    weights_.emplace(name.substr(0, dot), std::pair(dtype, shape));
  else if (kMarkers.find(name.substr(dot + 1)) != kMarkers.end())
    scales_.emplace(name, shape);
}

std::shared_ptr<const Json> QuantizationEvidence::config(const std::string& model_type) const {
  for (const std::string& tensor : coded_) {
    const CodedWeight weight = coded_weight(tensor, DType::kU8).value();
    if (methods().at(weight.method).only_family == model_type && tensor == weight.codes &&
        coded_.count(weight.scales) > 0)
      return std::make_shared<const Json>(Json{{"quant_method", weight.method}});
  }
  std::shared_ptr<Json> found;
  const auto declare = [&](const std::string& module, const Json& config) {
    if (found != nullptr && *found != config)
      throw Error(
          ErrorKind::kUnsupported,
          fmt::format("is quantised in another way than other linears: {}, and they {}", config.dump(), found->dump()))
          .tensor(module + ".weight")
          .hint("quantise all linears in the same way");
    found = std::make_shared<Json>(config);
  };
  for (const auto& [module, weight] : weights_)
    for (const auto& [name, method] : methods())
      for (const auto& scheme : method.schemes) {
        if (scheme->undeclared.is_null()) continue;
        const auto scale = scales_.find(module + "." + scheme->marker);
        if (scale == scales_.end()) continue;
        const auto parameter = std::find_if(scheme->parameters.begin(), scheme->parameters.end(),
                                            [&](const auto& one) { return one.name == scheme->marker; });
        Dims expected;
        for (const Expression& size : parameter->shape)
          expected.push_back(size.size([&shape = weight.second](const std::string& key) -> ConfigValue {
            return shape[key == "outputs" ? 0 : 1];
          }));
        const bool is_scalar = scale->second.size() < 2 && num_elems(scale->second) == 1u;
        if (parameter->scalar ? !is_scalar : scale->second != expected) continue;
        Json config = scheme->undeclared;
        config["quant_method"] = name;
        bool is_known = true;
        for (const auto& [key, values] : method.undeclared.items()) {
          const auto value = values.find(reshard::name(weight.first));
          is_known = is_known && value != values.end();
          if (is_known) config[key] = *value;
        }
        if (is_known) declare(module, config);
      }
  return found;
}

bool is_dequantized(const std::string& quant_method) {
  const auto method = methods().find(quant_method);
  if (method == methods().end()) return false;
  return !method->second.only_family.empty() ||
         std::any_of(method->second.schemes.begin(), method->second.schemes.end(), [](const auto& scheme) {
           return std::any_of(scheme->parameters.begin(), scheme->parameters.end(),
                              [](const auto& parameter) { return parameter.factor; });
         });
}

bool casts_only_others(const std::string& quant_method) {
  const auto method = methods().find(quant_method);
  return method != methods().end() && method->second.dtype_of_others;
}

bool keeps_stored_dtype(std::string_view name, const HoldsName& holds) {
  const std::size_t last = name.rfind('.') + 1;  // 0 if it has no dot
  return std::any_of(methods().begin(), methods().end(), [&](const auto& known) {
    const Method& method = known.second;
    return std::find(method.kept.begin(), method.kept.end(), name.substr(last)) != method.kept.end() &&
           (method.kept_beside.empty() || holds(std::string(name.substr(0, last)) + method.kept_beside));
  });
}

std::string quant_method(const ModelConfig& config) {
  return read_quantization(config).method;
}

}  // namespace reshard
