// From a family's JSON to the type, with every mistake in it told when it is read.

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/specs/family.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

struct PlanRow {
  TensorParallelPlan plan;
  const char* name;
};
constexpr PlanRow kPlans[] = {
    {TensorParallelPlan::kColwise, "colwise"},
    {TensorParallelPlan::kRowwise, "rowwise"},
    {TensorParallelPlan::kEmbeddingRowwise, "embedding_rowwise"},
    {TensorParallelPlan::kReplicate, "replicate"},
};

TensorParallelPlan plan_at(const JsonObject& object) {
  const std::string& word = object.string_at("plan");
  for (const PlanRow& row : kPlans)
    if (word == row.name) return row.plan;
  object.fail("plan", "one of colwise, rowwise, embedding_rowwise, replicate");
}

std::vector<std::string> strings_at(const JsonObject& object, const std::string& key) {
  std::vector<std::string> strings;
  for (const Json& item : object.array_at(key)) {
    if (!item.is_string()) object.fail(key, "an array of strings");
    strings.push_back(item.get<std::string>());
  }
  return strings;
}

Family::Module parse_module(const Json& json, const fs::path& path) {
  const JsonObject object(json, path, "modules");
  Family::Module module;
  module.name = object.string_at("name");
  module.parameter = object.has("parameter") ? object.string_at("parameter") : "weight";
  module.plan = plan_at(object);
  module.shape = strings_at(object, "shape");
  if (object.has("bias")) module.bias = object.string_at("bias");
  if (object.has("optional")) module.optional = object.bool_at("optional");
  if (object.has("stage")) {
    const std::string& stage = object.string_at("stage");
    if (stage != "first" && stage != "last") object.fail("stage", "\"first\" or \"last\"");
    module.on_last_stage = stage == "last";
  }
  if (object.has("tied_to")) module.tied_to = object.string_at("tied_to");
  return module;
}

Error bad_family(const fs::path& path, const std::string& message) {
  return Error(ErrorKind::kBadInput, message).in(path);
}

bool is_operator(const std::string& word) {
  return word == "*" || word == "/";
}

/// Numbers and keys with an operator between each two. \returns the keys.
std::vector<std::string> prove_expression(const std::string& expression, const fs::path& path) {
  const std::vector<std::string> words = split(expression, ' ');
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i].empty() || is_operator(words[i]) != (i % 2 == 1) || (is_operator(words[i]) && i + 1 == words.size()))
      throw bad_family(path, "\"" + printable(expression) + "\" is not numbers and keys with * or / between them");
    if (i % 2 == 0 && !parse_unsigned(words[i])) keys.push_back(words[i]);
  }
  return keys;
}

/// The keys that a default refers to, in all its forms.
std::vector<std::string> keys_of_default(const Json& value, const fs::path& path) {
  std::vector<std::string> keys;
  const auto add = [&](const Json& form) {
    if (!form.is_string()) return;
    for (std::string& key : prove_expression(form.get<std::string>(), path)) keys.push_back(std::move(key));
  };
  if (!value.is_object()) {
    add(value);
  } else {
    for (const auto& [when, form] : value.items()) add(form);
  }
  return keys;
}

/// No default needs itself, by whatever way.
void prove_default_ends(const Family& family, const std::string& key, std::vector<std::string>& on_the_way,
                        const fs::path& path) {
  const auto value = family.defaults->find(key);
  if (value == family.defaults->end()) return;
  if (std::find(on_the_way.begin(), on_the_way.end(), key) != on_the_way.end())
    throw bad_family(path, "the default of \"" + printable(key) + "\" depends on itself");
  on_the_way.push_back(key);
  for (const std::string& next : keys_of_default(*value, path)) prove_default_ends(family, next, on_the_way, path);
  on_the_way.pop_back();
}

void prove_defaults(const Family& family, const fs::path& path) {
  for (const auto& [key, value] : family.defaults->items()) {
    if (value.is_object() && !(value.size() == 2 && value.contains("absent") && value.contains("null")))
      throw bad_family(path, "the default of \"" + printable(key) + "\" must have \"absent\" and \"null\"");
    std::vector<std::string> on_the_way;
    prove_default_ends(family, key, on_the_way, path);
  }
}

void prove_family(const Family& family, const fs::path& path) {
  prove_defaults(family, path);
  const auto prove_module = [&](const std::string& name, const std::string& wanted_by) {
    for (const Family::Module& module : family.modules)
      if (module.name == name) return;
    throw bad_family(path, wanted_by + " names the module " + printable(name) + ", which is not there");
  };
  for (const Family::Module& module : family.modules) {
    for (const std::string& size : module.shape) prove_expression(size, path);
    const std::size_t needed = module.plan == TensorParallelPlan::kRowwise ? 2 : 1;
    if (module.shape.size() < needed)
      throw bad_family(path, fmt::format("the shape of {} has {} dims, which is too few for its plan",
                                         printable(module.name), module.shape.size()));
    if (!module.tied_to.empty()) prove_module(module.tied_to, "\"tied_to\" of " + printable(module.name));
  }
  for (const Family::Fused& fused : family.fused)
    for (const std::string& linear : fused.linears)
      prove_module(fused.module + "." + linear, "\"linears\" of " + printable(fused.name));
  if (!family.attention) return;
  const Family::Attention& attention = *family.attention;
  for (const std::string& linear : {attention.query, attention.key, attention.value, attention.output})
    prove_module(attention.module + "." + linear, "\"attention\"");
}

}  // namespace

Family parse_family(const Json& json, const fs::path& path) {
  const JsonObject object(json, path);
  Family family;
  family.model_type = object.string_at("model_type");
  family.layers = object.string_at("layers");
  family.defaults = std::make_shared<const Json>(object.object_at("defaults"));
  for (const Json& module : object.array_at("modules")) family.modules.push_back(parse_module(module, path));
  if (object.has("attention")) {
    const JsonObject attention(object.at("attention"), path, "attention");
    family.attention = {attention.string_at("module"), attention.string_at("query"),  attention.string_at("key"),
                        attention.string_at("value"),  attention.string_at("output"), attention.string_at("fused")};
  }
  for (const Json& item : object.array_at("fused")) {
    const JsonObject fused(item, path, "fused");
    family.fused.push_back({fused.string_at("module"), fused.string_at("name"), strings_at(fused, "linears")});
  }
  prove_family(family, path);
  return family;
}

}  // namespace reshard
