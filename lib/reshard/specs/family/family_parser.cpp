// Parser from a family's JSON to the type. Reports every error in the description when it is read.

#include "reshard/specs/family/family_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/io/text_file.h"
#include "reshard/specs/family/resolve_family.h"
#include "reshard/specs/family/scheme_parser.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

TensorParallelPlan plan_at(const JsonObject& object) {
  const std::string& given = object.string_at("plan");
  if (const auto plan = plan_of_word(given)) return *plan;
  const std::vector<std::string> words = plan_words();
  const std::string guess = nearest(given, words);
  object.fail("plan", "one of " + join(words, ", "), guess.empty() ? std::string() : "did you mean \"" + guess + "\"?");
}

std::vector<Family::Packed> packed_at(const JsonObject& module) {
  std::vector<Family::Packed> packed;
  std::size_t i = 0;
  for (const Json& item : module.array_at("packed")) {
    const std::string index = "packed/" + std::to_string(i++);
    if (!item.is_object()) {
      packed.push_back({expression_of(module, item, module.pointer() + "/" + index, "packed"), {}, false});
      continue;
    }
    const JsonObject part = module.child(item, "packed", index);
    part.validate_keys({"size", "count", "plan"});
    if (part.has("plan") && part.string_at("plan") != "replicate") part.fail("plan", "\"replicate\", or no such key");
    packed.push_back({expression_at(part, "size"), part.has("count") ? expression_at(part, "count") : Expression(),
                      part.has("plan")});
  }
  if (packed.empty()) module.fail("packed", "at least one size");
  return packed;
}

Family::Module parse_module(const JsonObject& object) {
  object.validate_keys({"name", "parameter", "plan", "shape", "bias", "when", "packed", "stride", "heads", "experts",
                        "stacked_experts", "first_expert", "items", "variant", "optional", "trained", "stage",
                        "tied_to", "dim"});
  Family::Module module;
  module.name = object.string_at("name");
  module.parameter = object.has("parameter") ? object.string_at("parameter") : "weight";
  module.plan = plan_at(object);
  module.any_shape = !object.has("shape") && object.has("optional") && object.bool_at("optional") &&
                     module.plan == TensorParallelPlan::kReplicate;
  if (!module.any_shape)
    for (const Json& size : object.array_at("shape"))
      module.shape.push_back(expression_of(object, size, object.pointer_to("shape"), "shape"));
  if (object.has("bias")) {
    const bool always = object.at("bias") == "always";
    module.bias = always ? Expression::parse("true") : expression_at(object, "bias");
  }
  if (object.has("when")) module.when = expression_at(object, "when");
  if (object.has("packed")) module.packed = packed_at(object);
  if (object.has("heads")) module.heads = expression_at(object, "heads");
  if (object.has("experts")) module.experts = expression_at(object, "experts");
  if (object.has("stacked_experts")) {
    if (module.experts) object.fail("stacked_experts", "no \"experts\" next to it");
    if (module.shape.empty()) object.fail("stacked_experts", "a \"shape\" next to it, whose dim 0 is the experts");
    module.experts = expression_at(object, "stacked_experts");
    module.stacked = true;
  }
  if (object.has("first_expert")) {
    if (!module.experts || module.stacked) object.fail("first_expert", "\"experts\" next to it");
    module.first_expert = expression_at(object, "first_expert");
  }
  if (object.has("items")) {
    if (module.experts) object.fail("items", "no \"experts\" next to it");
    module.items = expression_at(object, "items");
  }
  if (object.has("variant")) module.variant = object.string_at("variant");
  if (object.has("optional")) module.optional = object.bool_at("optional");
  if (object.has("trained")) module.trained = object.bool_at("trained");
  if (object.has("stage")) {
    const std::string& stage = object.string_at("stage");
    if (stage != "first" && stage != "last") object.fail("stage", "\"first\" or \"last\"");
    if (stage == "last") module.stage = OuterStage::kLast;
  }
  if (object.has("tied_to")) module.tied_to = object.string_at("tied_to");

  const bool rowwise = module.plan == TensorParallelPlan::kRowwise || module.plan == TensorParallelPlan::kPackedRowwise;
  const std::size_t needed = rowwise ? 2 : module.plan == TensorParallelPlan::kReplicate ? 0 : 1;
  if (module.shape.size() < needed)
    throw object.file().error(object.pointer_to("shape"),
                              fmt::format("\"shape\" of {} has {} dims, which is too few for its plan",
                                          printable(module.name), module.shape.size()));
  if (object.has("dim")) {
    const Json& dim = object.at("dim");
    if (!dim.is_number_unsigned() || dim.get<std::uint64_t>() >= module.shape.size() ||
        module.plan == TensorParallelPlan::kReplicate)
      object.fail("dim", "the number of one of the dims of \"shape\", counted from 0, of what is split");
    module.dim = dim.get<std::uint32_t>();
  }
  if (!module.packed.empty() && !is_packed(module.plan))
    object.fail("packed", "a plan of packed_colwise or packed_rowwise");
  if (object.has("stride")) {
    if (module.plan == TensorParallelPlan::kReplicate || is_packed(module.plan))
      object.fail("stride", "a plan of colwise, rowwise or embedding_rowwise");
    module.stride = expression_at(object, "stride");
  }
  const auto stars = std::count(module.name.begin(), module.name.end(), '*');
  if (stars > 2 || (stars == 2 && !module.is_list()) || (stars == 0 && module.is_list()))
    throw object.file().error(
        object.pointer_to("name"),
        fmt::format(
            "\"name\" {} has {} stars: the first is the layer's number, and with \"experts\" or \"items\" there is "
            "a second, theirs, which outside the layers is the only one",
            printable(module.name), stars));
  return module;
}

/// Returns the keys that a default refers to, in all its forms.
std::vector<std::string> keys_of_default(const Json& value) {
  std::vector<std::string> keys;
  const auto add = [&](const Json& form) {
    if (!form.is_string()) return;
    for (std::string& key : Expression::parse(form.get_ref<const std::string&>()).keys())
      keys.push_back(std::move(key));
  };
  if (!value.is_object()) {
    add(value);
  } else {
    for (const auto& [when, form] : value.items()) add(form);
  }
  return keys;
}

/// Rejects defaults and definitions that depend on themselves, directly or indirectly, or on a long chain of others.
class DefaultCheck {
 public:
  DefaultCheck(const JsonObject& defaults, const JsonObject& definitions)
      : defaults_(defaults), definitions_(definitions) {}

  void validate(const std::string& key, std::size_t depth = 0) {
    const bool defined = definitions_.has(key);
    const JsonObject& object = defined ? definitions_ : defaults_;
    if (!object.has(key) || done_.count(key)) return;
    const auto fail = [&](const char* what) {
      throw object.file().error(object.pointer_to(key), (defined ? "the definition of \"" : "the default of \"") +
                                                            printable(key) + "\" " + what);
    };
    if (!on_the_way_.insert(key).second) fail("depends on itself");
    if (depth > kMaxDepth) fail("is at the end of a longer chain of defaults than any model has");
    for (const std::string& next : keys_of_default(object.at(key))) validate(next, depth + 1);
    on_the_way_.erase(key);
    done_.insert(key);
  }

 private:
  static constexpr std::size_t kMaxDepth = 64;

  const JsonObject& defaults_;
  const JsonObject& definitions_;
  std::set<std::string> on_the_way_;
  std::set<std::string> done_;
};

void validate_defaults(const JsonObject& defaults) {
  for (const auto& item : defaults.items()) {
    const std::string& key = item.key();
    const Json& value = item.value();
    const std::string pointer = defaults.pointer_to(key);
    if (value.is_object() && !(value.size() == 2 && value.contains("absent") && value.contains("null")))
      throw defaults.file().error(pointer,
                                  "the default of \"" + printable(key) + "\" must have \"absent\" and \"null\"");
    const auto validate_form = [&](const Json& form) {
      if (form.is_string()) expression_of(defaults, form, pointer, key);
      if (form.is_object()) defaults.fail(key, "a value, or an expression");
    };
    if (!value.is_object())
      validate_form(value);
    else
      for (const auto& [when, form] : value.items()) validate_form(form);
  }
}

Family::Inference inference_at(const JsonObject& object) {
  const JsonObject described = object.object_at("nxd_inference");
  described.validate_keys({"entries", "padded_sizes", "prefix"});
  Family::Inference inference;
  if (described.has("entries")) inference.entries = parse_entries(described, "entries", {}, true);
  if (described.has("prefix")) inference.prefix = described.string_at("prefix");
  if (!described.has("padded_sizes")) return inference;
  const JsonObject sizes = described.object_at("padded_sizes");
  for (const auto& size : sizes.items()) inference.padded_sizes.emplace(size.key(), sizes.string_at(size.key()));
  return inference;
}

/// What other programs call the parameters of `family`.
std::vector<std::shared_ptr<const Scheme>> schemes_at(const JsonObject& object, const Family& family) {
  const auto parameters = parameter_names(family);
  std::vector<std::shared_ptr<const Scheme>> schemes;
  for (const Json& item : object.array_at("other_names")) {
    const JsonObject described = object.child(item, "other_names", fmt::format("other_names/{}", schemes.size()));
    const Scheme scheme = parse_scheme(described);
    if (!scheme.families.empty()) described.fail("families", "no such key, as the scheme is for this family");
    if (scheme.is_of_ranks) described.fail("of_ranks", "false");
    for (const auto& other : schemes)
      if (other->program == scheme.program) described.fail("program", "programs that differ");
    for (std::size_t e = 0; e < scheme.entries.size(); ++e)
      for (const std::string& parameter : scheme.entries[e].parameters)
        if (!parameter.starts_with("**") && parameters.count(parameter) == 0)
          throw object.file().error(
              fmt::format("{}/entries/{}/parameters", described.pointer(), e),
              fmt::format("\"other_names\" names the parameter {}, which does not exist", printable(parameter)));
    schemes.push_back(std::make_shared<const Scheme>(scheme_for(scheme, family.model_type, parameters)));
  }
  return schemes;
}

/// Returns the axis of fused linears: the axis along which the first one is split.
std::uint32_t fuse_axis_of(const Family& family, const Family::Fused& fused) {
  if (fused.linears.empty()) return 0;
  for (const Family::Module& module : family.modules)
    if (module.name == fused.module + "." + fused.linears.front() && module.parameter == "weight")
      return module.plan == TensorParallelPlan::kRowwise ? 1 : 0;
  return 0;
}

/// Describes a module in messages: by its name, or its index.
std::string module_text(const Json& module, std::size_t index) {
  const auto name = module.is_object() ? module.find("name") : module.end();
  if (name == module.end() || !name->is_string()) return fmt::format("modules[{}]", index);
  return printable(name->get_ref<const std::string&>());
}

/// Maps pointers into a resolved family to pointers into the family with "like" that it was derived from.
class DerivedPointers {
 public:
  DerivedPointers(const Json& resolved, const Json& derived) : derived_(derived) {
    if (!derived.contains("modules")) return;
    std::map<std::string, std::vector<std::size_t>> given;  // indices of the modules of each name, in order
    std::map<std::string, std::size_t> seen;                // number of modules of that name so far
    const Json& modules = derived.at("modules");
    for (std::size_t i = 0; i < modules.size(); ++i) given[name_of(modules[i])].push_back(i);
    for (const Json& module : resolved.at("modules")) {
      const std::string name = name_of(module);
      const std::size_t before = seen[name]++;
      const auto found = given.find(name);
      const bool is_given = found != given.end() && before < found->second.size();
      modules_.push_back(is_given ? std::optional(found->second[before]) : std::nullopt);
    }
  }

  /// Returns "/like" for values of the other family.
  std::string operator()(const std::string& pointer) const {
    const std::vector<std::string> parts = split(pointer, '/');
    if (parts.size() < 2 || !derived_.contains(parts[1])) return "/like";
    if (parts[1] != "modules" || parts.size() < 3) return pointer;
    const auto index = parse_unsigned(parts[2]);
    if (!index || *index >= modules_.size() || !modules_[*index]) return "/like";
    return fmt::format("/modules/{}{}", *modules_[*index], pointer.substr(("/modules/" + parts[2]).size()));
  }

 private:
  static std::string name_of(const Json& module) {
    return json_text(Json{module.value("name", Json()), module.value("parameter", Json("weight"))});
  }

  const Json& derived_;
  std::vector<std::optional<std::size_t>> modules_;  // index in the derived family of resolved module i
};

void read_modules(const JsonObject& object, Family& family) {
  if (object.array_at("modules").empty()) object.fail("modules", "at least one module");
  std::size_t i = 0;
  bool behind_layers = false;
  for (const Json& json_of_module : object.array_at("modules")) {
    const JsonObject of_module =
        object.child(json_of_module, module_text(json_of_module, i), fmt::format("modules/{}", i));
    Family::Module module = parse_module(of_module);
    const bool layered = module.is_layered();
    behind_layers = behind_layers || layered;
    module.line = object.file().line(of_module.pointer());
    if (behind_layers && !layered && !of_module.has("stage")) module.stage = OuterStage::kAssumedFirst;
    family.modules.push_back(std::move(module));
    ++i;
  }
}

Family::Attention attention_at(const JsonObject& object) {
  const JsonObject json = object.child(object.at("attention"), "attention", "attention");
  json.validate_keys({"module", "query", "key", "value", "output", "fused", "fuse_qkv", "kv_size_multiplier"});
  Family::Attention attention{json.string_at("module"), json.string_at("query"),  json.string_at("key"),
                              json.string_at("value"),  json.string_at("output"), json.string_at("fused")};
  attention.fuse_qkv = json.has("fuse_qkv") && json.bool_at("fuse_qkv");
  if (!json.has("kv_size_multiplier")) return attention;
  const Json& multiplier = json.at("kv_size_multiplier");
  if (!multiplier.is_number_unsigned() || multiplier == 0) json.fail("kv_size_multiplier", "a whole number from 1");
  attention.kv_size_multiplier = multiplier.get<std::uint64_t>();
  return attention;
}

void read_fused(const JsonObject& object, Family& family) {
  for (const JsonObject& fused : object.objects_at("fused")) {
    fused.validate_keys({"module", "name", "linears"});
    family.fused.push_back({fused.string_at("module"), fused.string_at("name"), fused.strings_at("linears")});
    family.fused.back().axis = fuse_axis_of(family, family.fused.back());
  }
}

/// Every module that is spoken of is there.
void validate_names(const Family& family, const JsonFile& file) {
  const auto validate_module = [&](const std::string& name, const std::string& pointer, const std::string& wanted_by) {
    for (const Family::Module& module : family.modules)
      if (module.name == name) return;
    throw file.error(pointer, wanted_by + " names the module " + printable(name) + ", which does not exist");
  };
  bool after_layers = false;
  for (std::size_t i = 0; i < family.modules.size(); ++i) {
    const Family::Module& module = family.modules[i];
    const std::string pointer = "/modules/" + std::to_string(i);
    if (!module.tied_to.empty() && module.tied_to == module.name)
      throw file.error(pointer + "/tied_to", "\"tied_to\" of " + printable(module.name) + " names itself");
    if (!module.tied_to.empty()) {
      const std::string what = "\"tied_to\" of " + printable(module.name);
      validate_module(module.tied_to, pointer + "/tied_to", what);
      for (const Family::Module& source : family.modules)
        if (source.name == module.tied_to && (source.parameter != "weight" || source.when || source.optional ||
                                              source.name.find('*') != std::string::npos))
          throw file.error(pointer + "/tied_to", what + " names " + printable(source.name) +
                                                     ", which is in the layers, or not in every checkpoint");
    }
    const bool layered = module.is_layered();
    if (!layered && module.is_list() && !family.layers.empty() && module.name.starts_with(family.layers + ".*"))
      throw file.error(pointer + "/name", fmt::format("\"name\" {} has one star, which is the layer's number: "
                                                      "\"experts\" or \"items\" need a second",
                                                      printable(module.name)));
    if (layered && family.layers.empty())
      throw file
          .error(pointer + "/name", fmt::format("\"name\" {} has a star for a layer's number, but \"layers\" is "
                                                "missing",
                                                printable(module.name)))
          .hint("\"layers\" is the prefix of a layer's names: \"model.layers\"");
    if (layered && !module.name.starts_with(family.layers + ".*."))
      throw file.error(pointer + "/name", fmt::format("\"name\" {} does not begin with \"layers\", {}.*.",
                                                      printable(module.name), printable(family.layers)));
    if (layered && after_layers)
      throw file.error(pointer + "/name", fmt::format("the modules of the layers are not consecutive: {} comes late",
                                                      printable(module.name)));
    after_layers = after_layers || (!layered && i > 0 && family.modules[i - 1].is_layered());
  }
  for (std::size_t i = 0; i < family.fused.size(); ++i)
    for (const std::string& linear : family.fused[i].linears)
      validate_module(family.fused[i].module + "." + linear, fmt::format("/fused/{}/linears", i),
                      "\"linears\" of " + printable(family.fused[i].name));
  if (!family.attention) return;
  const Family::Attention& attention = *family.attention;
  for (const std::string& linear : {attention.query, attention.key, attention.value, attention.output})
    validate_module(attention.module + "." + linear, "/attention", "\"attention\"");
}

/// Validates that no module is listed twice. Modules with `when`, and different parameters of one, may share a name.
void validate_unique(const Family& family, const JsonFile& file) {
  std::set<std::pair<std::string, std::string>> always;
  for (std::size_t i = 0; i < family.modules.size(); ++i) {
    const Family::Module& module = family.modules[i];
    if (!module.when && !always.emplace(module.name, module.parameter).second)
      throw file.error(fmt::format("/modules/{}/name", i), "\"name\" " + printable(module.name) + " is listed twice");
  }
}

/// Validates that fused linears are split along the same dim, and that their fused names are unique.
void validate_fused(const Family& family, const JsonFile& file) {
  const auto validate_plan = [&](const std::string& name, TensorParallelPlan plan, const std::string& pointer,
                                 const std::string& what) {
    for (const Family::Module& module : family.modules)
      if (module.name == name && module.parameter == "weight" && module.plan != plan)
        throw file.error(pointer, fmt::format("{} {} needs the plan {}", what, printable(name),
                                              plan == TensorParallelPlan::kColwise ? "colwise" : "rowwise"));
  };
  const auto validate_new = [&](const std::string& name, const std::string& pointer) {
    for (const Family::Module& module : family.modules)
      if (module.name == name)
        throw file.error(pointer, "the fused linear cannot be called " + printable(name) + ", as a module is");
  };
  for (std::size_t i = 0; i < family.fused.size(); ++i) {
    const Family::Fused& fused = family.fused[i];
    const std::string pointer = fmt::format("/fused/{}", i);
    if (fused.linears.size() < 2 || std::set(fused.linears.begin(), fused.linears.end()).size() != fused.linears.size())
      throw file.error(pointer + "/linears",
                       fmt::format("\"linears\" of {} are not several different ones", printable(fused.name)));
    for (const std::string& linear : fused.linears)
      validate_plan(fused.module + "." + linear,
                    fused.axis == 1 ? TensorParallelPlan::kRowwise : TensorParallelPlan::kColwise, pointer + "/linears",
                    "of \"linears\" to fuse,");
    for (const Family::Module& module : family.modules)
      for (const std::string& linear : fused.linears)
        if (fused.axis == 1 && module.bias && module.name == fused.module + "." + linear)
          throw file.error(pointer + "/linears",
                           fmt::format("of \"linears\" to fuse, {} is split along its inputs, and "
                                       "so it cannot have a bias",
                                       printable(module.name)));
    validate_new(fused.module + "." + fused.name, pointer + "/name");
  }
  if (!family.attention) return;
  const Family::Attention& attention = *family.attention;
  for (const std::string& linear : {attention.query, attention.key, attention.value})
    validate_plan(attention.module + "." + linear, TensorParallelPlan::kColwise, "/attention", "of \"attention\",");
  validate_plan(attention.module + "." + attention.output, TensorParallelPlan::kRowwise, "/attention",
                "the output of \"attention\",");
  validate_new(attention.module + "." + attention.fused, "/attention/fused");
}

/// Validates that the modules of a description are consistent: referenced modules exist, modules are unique, and fused
/// linears are split along the same dim.
/// \throws Error kBadInput, naming the file and the line.
void validate_family(const Family& family, const JsonFile& file) {
  validate_names(family, file);
  validate_unique(family, file);
  validate_fused(family, file);
}

Family parse(const Json& json, const JsonFile& file) {
  const JsonObject object(json, file);
  Family family;
  if (object.has("language_model")) {
    object.validate_keys({"$schema", "model_type", "language_model"});
    family.model_type = object.string_at("model_type");
    family.language_model = object.string_at("language_model");
    const auto known = builtin_description(family.language_model);
    if (!known || !known->contains("modules"))
      object.fail("language_model", "the name of a built-in family that has modules");
    return family;
  }
  std::vector<std::string> known = {"$schema"};
  for (const FamilyKey& key : family_keys()) known.emplace_back(key.name);
  object.validate_keys(known);
  family.model_type = object.string_at("model_type");
  if (object.has("layers")) {
    family.layers = object.string_at("layers");
    if (family.layers.empty()) object.fail("layers", "the prefix of a layer's names, or no such key");
    family.num_layers =
        object.has("num_layers") ? expression_at(object, "num_layers") : Expression::parse("num_hidden_layers");
  } else if (object.has("num_layers")) {
    object.fail("num_layers", "\"layers\" next to it, the prefix of a layer's names");
  }
  family.layers_line = file.line("/num_layers");
  family.defaults = std::make_shared<const Json>(object.has("defaults") ? object.at("defaults") : Json::object());
  const JsonObject defaults = object.child(*family.defaults, "defaults", "defaults");
  validate_defaults(defaults);
  const Json none = Json::object();
  const JsonObject definitions = object.has("define") ? object.object_at("define") : object.child(none, "", "");
  for (const auto& item : definitions.items())
    family.definitions.emplace(item.key(), expression_at(definitions, item.key()));
  DefaultCheck check(defaults, definitions);
  for (const JsonObject* all : {&defaults, &definitions})
    for (const auto& item : all->items()) check.validate(item.key());
  if (object.has("class_defaults")) {
    family.class_defaults = std::make_shared<const Json>(object.at("class_defaults"));
    object.child(*family.class_defaults, "class_defaults", "class_defaults");  // which proves that it is an object
  }
  read_modules(object, family);
  if (object.has("attention")) family.attention = attention_at(object);
  if (object.has("fused")) read_fused(object, family);
  if (object.has("whole")) family.whole = object.strings_at("whole");
  if (object.has("float32")) family.float32 = object.strings_at("float32");
  if (object.has("float32_in_float16")) family.float32_in_float16 = object.strings_at("float32_in_float16");
  if (object.has("nxd_inference")) family.inference = inference_at(object);
  validate_family(family, file);
  if (object.has("other_names")) family.schemes = schemes_at(object, family);
  return family;
}

}  // namespace

Family parse_family(const Json& json, const fs::path& path) {
  return parse(json, JsonFile{path});
}

Family parse_family_text(std::string text, const fs::path& path) {
  const LocatedJson located = parse_located_json(text, path);
  const JsonFile file{path, [&](const std::string& pointer) { return located.places.line_of(pointer); }};
  if (!located.json.is_object() || !located.json.contains("like")) {
    Family family = parse(located.json, file);
    family.json_text = std::move(text);
    return family;
  }
  std::string whole = family_text(resolve_family(parse_ordered_json(text, path), builtin_description, file));
  const Json resolved = Json::parse(whole);
  const DerivedPointers pointers(resolved, located.json);
  Family family =
      parse(resolved, {path, [&](const std::string& pointer) { return located.places.line_of(pointers(pointer)); }});
  family.json_text = std::move(whole);
  return family;
}

std::shared_ptr<const Family> read_family(Files& files, const fs::path& path) {
  constexpr std::uint64_t kMaxFamilyBytes = std::uint64_t{1} << 20;
  Family family = parse_family_text(read_text_file(files, path, kMaxFamilyBytes), path);
  family.file = path;
  return std::make_shared<const Family>(std::move(family));
}

}  // namespace reshard
