#include "reshard/specs/quantization.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/specs/builtin_files.h"
#include "reshard/specs/model.h"

namespace reshard {
namespace {

/// A tensor of `weight`'s module that is split as one of the weight's dims is.
/// \param out, in Its dims that belong to the weight's outputs and inputs; -1: none.
/// \param unit_out, unit_in Elements of the weight to one of its own, along them.
ModelParameter part_of(const ModelParameter& weight, const char* leaf, const Dims& shape, int out, int in,
                       std::uint64_t unit_out, std::uint64_t unit_in) {
  ModelParameter part = weight;
  part.name = weight.module + "." + leaf;
  part.shape = shape;
  part.split_dim.reset();
  part.packed.clear();
  part.heads = 0;
  part.tied_to.clear();
  if (!weight.split_dim) return part;
  const bool of_outputs = *weight.split_dim == 0;
  const int dim = of_outputs ? out : in;
  const std::uint64_t unit = of_outputs ? unit_out : unit_in;
  if (dim < 0 || unit == 0) return part;  // one for all
  part.split_dim = static_cast<std::uint32_t>(dim);
  part.heads = weight.heads;
  part.block_cut = weight.shape[*weight.split_dim] % unit != 0;
  for (const PackedPart& packed : weight.packed) {
    part.block_cut = part.block_cut || packed.size % unit != 0;
    part.packed.push_back({packed.size / unit, packed.replicated});
  }
  if (part.block_cut) part.packed.clear();
  return part;
}

}  // namespace

struct QuantizationForm {
  /// Of the weight's outputs, or its inputs.
  struct Along {
    int dim = -1;
    Expression per;
  };
  struct Parameter {
    std::string name;
    bool has_shape = false;
    std::vector<Expression> shape;
    Along outputs, inputs;
    Expression when;
    bool optional = false;
  };
  Expression when;
  std::string marker;
  std::map<std::string, Expression, std::less<>> definitions;
  std::map<std::string, Json> keys;
  std::vector<Parameter> parameters;
};

namespace {

/// A file of lib/reshard/specs/quantizations.
struct Method {
  std::map<std::string, Json> keys;
  std::vector<std::shared_ptr<const QuantizationForm>> forms;
};

QuantizationForm::Along along_at(const Json& parameter, const char* key) {
  const auto found = parameter.find(key);
  if (found == parameter.end()) return {};
  return {found->at("dim").get<int>(), Expression::parse(found->at("per").get_ref<const std::string&>())};
}

QuantizationForm parse_form(const Json& json) {
  QuantizationForm form;
  if (json.contains("when")) form.when = Expression::parse(json.at("when").get_ref<const std::string&>());
  form.marker = json.at("marker").get<std::string>();
  if (json.contains("keys")) form.keys = json.at("keys").get<std::map<std::string, Json>>();
  if (json.contains("define"))
    for (const auto& [name, text] : json.at("define").items())
      form.definitions.emplace(name, Expression::parse(text.get_ref<const std::string&>()));
  for (const Json& one : json.at("parameters")) {
    QuantizationForm::Parameter& parameter = form.parameters.emplace_back();
    parameter.name = one.at("name").get<std::string>();
    parameter.has_shape = one.contains("shape");
    if (parameter.has_shape)
      for (const Json& size : one.at("shape"))
        parameter.shape.push_back(Expression::parse(size.get_ref<const std::string&>()));
    parameter.outputs = along_at(one, "outputs");
    parameter.inputs = along_at(one, "inputs");
    if (one.contains("when")) parameter.when = Expression::parse(one.at("when").get_ref<const std::string&>());
    parameter.optional = one.value("optional", false);
  }
  return form;
}

/// The methods, by their names.
const std::map<std::string, Method>& methods() {
  static const std::map<std::string, Method> kKnown = [] {
    std::map<std::string, Method> all;
    for (const BuiltinFile& file : kBuiltinQuantizations) {
      const Json json = parse_json(file.json, std::filesystem::path("built-in quantisation") / file.name);
      Method method{json.at("keys").get<std::map<std::string, Json>>(), {}};
      for (const Json& form : json.at("forms"))
        method.forms.push_back(std::make_shared<const QuantizationForm>(parse_form(form)));
      all.emplace(json.at("quant_method").get<std::string>(), std::move(method));
    }
    return all;
  }();
  return kKnown;
}

constexpr std::uint64_t kMaxBlock = 1 << 20;
constexpr std::string_view kWeights = "weights.";

bool is_block(const Json& value) {
  return value.is_number_unsigned() && value != 0 && value.get<std::uint64_t>() <= kMaxBlock;
}

/// The quantization_config, and what its config_groups say of weights.
struct Values {
  std::filesystem::path path;
  std::shared_ptr<const Json> config;
  const Json* weights = nullptr;  // in `config`

  const Json* find(std::string_view key) const {
    const Json* object = config.get();
    if (key.starts_with(kWeights)) {
      object = weights;
      key.remove_prefix(kWeights.size());
    }
    if (object == nullptr) return nullptr;
    const auto found = object->find(key);
    return found == object->end() ? nullptr : &*found;
  }

  /// Null where it is not there, or is -1.
  ConfigValue operator()(const std::string& key) const {
    const Json* value = find(key);
    if (value == nullptr || value->is_null() || *value == -1) return {};
    if (value->is_boolean()) return value->get<bool>();
    if (value->is_number_unsigned()) return value->get<std::uint64_t>();
    return value;
  }

  /// \throws Error kBadInput for a value that is none of those that `wanted` says.
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
      if (value == nullptr || std::find(wanted.begin(), wanted.end(), *value) == wanted.end())
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
};

/// What the config_groups of compressed-tensors say of weights; null where there are none, or they differ.
/// \throws Error kBadInput, naming config.json and the key.
const Json* weights_of_groups(const Json& config, const std::filesystem::path& path) {
  const JsonObject object(config, path, "quantization_config");
  if (!object.has("config_groups")) return nullptr;
  const Json& groups = object.object_at("config_groups");
  const Json* weights = nullptr;
  for (const auto& group : groups.items()) {
    const Json& of_group = JsonObject(group.value(), path, "config_groups").object_at("weights");
    if (weights != nullptr && *weights != of_group) return nullptr;
    weights = &of_group;
  }
  return weights;
}

}  // namespace

std::optional<Quantization> Quantization::read(const ModelConfig& config) {
  const auto found = config.json->find("quantization_config");
  if (found == config.json->end() || !found->is_object()) return std::nullopt;
  const auto name = found->find("quant_method");
  if (name == found->end() || !name->is_string()) return std::nullopt;
  const auto method = methods().find(name->get<std::string>());
  if (method == methods().end()) return std::nullopt;
  Values values{config.path, std::make_shared<const Json>(*found), nullptr};
  values.weights = weights_of_groups(*values.config, config.path);
  if (method->first == "compressed-tensors" && values.weights == nullptr) return std::nullopt;
  for (const auto& [key, wanted] : method->second.keys) values.validate(key, wanted);
  for (const auto& form : method->second.forms) {
    if (form->when && !form->when.holds(values)) continue;
    for (const auto& [key, wanted] : form->keys) values.validate(key, wanted);
    Quantization quantization;
    quantization.form_ = form;
    quantization.config_ = values;
    quantization.path_ = config.path;
    return quantization;
  }
  return std::nullopt;
}

const std::vector<Quantization::Part>& Quantization::parts_of(std::uint64_t out, std::uint64_t in) {
  const auto [found, is_new] = parts_.try_emplace({out, in});
  if (!is_new) return found->second;
  const Expression::Lookup lookup = [&](const std::string& key) -> ConfigValue {
    if (key == "outputs") return out;
    if (key == "inputs") return in;
    const auto defined = form_->definitions.find(key);
    return defined != form_->definitions.end() ? defined->second.value(lookup) : config_(key);
  };
  try {
    for (const QuantizationForm::Parameter& parameter : form_->parameters) {
      if (parameter.when && !parameter.when.holds(lookup)) continue;
      Part part;
      part.leaf = parameter.name.c_str();
      part.is_weight = parameter.name == "weight" && !parameter.has_shape;
      part.optional = parameter.optional;
      part.any_shape = !parameter.has_shape && !part.is_weight;
      for (const Expression& size : parameter.shape) part.shape.push_back(size.size(lookup));
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

void Quantization::add_linear(const ModelParameter& weight, const std::function<bool(const std::string& name)>& holds,
                              std::vector<ModelParameter>& parameters) {
  const auto has = [&](const char* leaf) { return holds && holds(weight.module + "." + leaf); };
  if (!has(form_->marker.c_str())) {
    parameters.push_back(weight);
    return;
  }
  for (const Part& part : parts_of(weight.shape[0], weight.shape[1])) {
    if (part.optional && !has(part.leaf)) continue;
    if (part.is_weight) {
      parameters.push_back(weight);
      continue;
    }
    parameters.push_back(part_of(weight, part.leaf, part.shape, part.out_dim, part.in_dim, part.per_out, part.per_in));
    parameters.back().any_shape = part.any_shape;
    parameters.back().optional = part.optional;
  }
}

namespace {

constexpr const char* kOfFamilies[] = {"mxfp4"};  // methods that families describe

/// The methods that are known, sorted.
std::vector<std::string> known_methods() {
  std::vector<std::string> names(std::begin(kOfFamilies), std::end(kOfFamilies));
  for (const auto& [name, method] : methods()) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

constexpr const char* kWhenLoaded =
    "take the checkpoint from before it was quantised, and quantise it where it is loaded";

/// Methods whose tensors cannot be cut, and why.
struct WholeMethod {
  const char* name;
  const char* why;
};
constexpr WholeMethod kWholeMethods[] = {
    {"bitsandbytes", "its weights are stored as one row of blocks that run on from one row of the matrix to the next"},
    {"bitsandbytes_4bit", "its weights are stored as one row of blocks that run on from row to row of the matrix"},
    {"bitsandbytes_8bit", "its outliers are stored for the whole matrix"},
    {"hqq", "its weights are packed across the whole matrix, with a state of their own"},
    {"torchao", "its weights are pickled tensor classes, whose parts only torchao knows"},
    {"quanto", "its weights are tensor classes, whose parts only quanto knows"},
    {"gguf", "its tensors are those of llama.cpp, in blocks and under names of their own"},
    {"aqlm", "its codebooks are shared by the whole matrix"},
    {"vptq", "its codebooks and permutations are shared by the whole matrix"},
    {"spqr", "its weights are one sparse structure for the whole matrix"},
    {"higgs", "its weights are packed for the kernel that reads them whole"},
    {"eetq", "its weights are packed for the kernel that reads them whole"},
};

}  // namespace

std::optional<QuantizationProblem> quantization_problem(const std::string& method) {
  const auto is_it = [&](const char* name) { return method == name; };
  const std::vector<std::string> known = known_methods();
  if (method.empty() || std::find(known.begin(), known.end(), method) != known.end()) return std::nullopt;
  for (const WholeMethod& whole : kWholeMethods)
    if (is_it(whole.name))
      return QuantizationProblem{
          fmt::format("the model is quantised by {}, which cannot be partitioned: {}", method, whole.why), kWhenLoaded};
  return QuantizationProblem{fmt::format("the model is quantised by \"{}\", which is not known; known are {}",
                                         printable(method), join(known, ", ")),
                             "describe its tensors with `spec`"};
}

}  // namespace reshard
