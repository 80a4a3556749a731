#include "reshard/specs/family/resolve_family.h"

#include <nlohmann/json.hpp>
#include <set>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/specs/family/family.h"
#include "reshard/specs/family/family_parser.h"
#include "reshard/specs/model/model.h"
#include "support/files.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

OrderedJson parent() {
  return OrderedJson::parse(R"({
    "model_type": "parent",
    "layers": "model.layers",
    "defaults": {"bias": false, "size": 4},
    "modules": [
      {"name": "model.embed", "plan": "embedding_rowwise", "shape": ["vocab", "size"], "stage": "first"},
      {"name": "model.layers.*.attn.q", "plan": "colwise", "shape": ["size", "size"], "bias": "bias"},
      {"name": "model.layers.*.attn.k", "plan": "colwise", "shape": ["size", "size"]},
      {"name": "model.layers.*.attn.v", "plan": "colwise", "shape": ["size", "size"]},
      {"name": "model.layers.*.attn.o", "plan": "rowwise", "shape": ["size", "size"]},
      {"name": "model.layers.*.mlp.up", "plan": "colwise", "shape": ["size", "size"]},
      {"name": "model.layers.*.mlp.gate", "plan": "colwise", "shape": ["size", "size"]},
      {"name": "model.layers.*.mlp", "plan": "replicate", "parameter": "scale", "shape": ["size"]},
      {"name": "model.norm", "plan": "replicate", "shape": ["size"], "stage": "last"},
      {"name": "head", "plan": "colwise", "shape": ["vocab", "size"], "stage": "last", "tied_to": "model.embed"}
    ],
    "attention": {"module": "model.layers.*.attn", "query": "q", "key": "k", "value": "v", "output": "o", "fused": "qkv"},
    "fused": [{"module": "model.layers.*.mlp", "name": "gate_up", "linears": ["gate", "up"]}],
    "nxd_inference": {}
  })");
}

OrderedJson resolved(const std::string& derived) {
  const auto find = [](const std::string& name) { return name == "parent" ? std::optional(parent()) : std::nullopt; };
  return resolve_family(OrderedJson::parse(derived), find, {"child.json"});
}

std::vector<std::string> names_of(const OrderedJson& family) {
  std::vector<std::string> names;
  for (const OrderedJson& module : family.at("modules")) names.push_back(module.at("name").get<std::string>());
  return names;
}

TEST_CASE("A family that is like another has all of it but its name and those of NxD Inference") {
  OrderedJson expected = parent();
  expected["model_type"] = "child";
  expected.erase("nxd_inference");
  CHECK(resolved(R"({"model_type": "child", "like": "parent"})") == expected);
  CHECK(resolve_family(parent(), [](const std::string&) { return std::nullopt; }, {"f.json"}) == parent());
}

TEST_CASE("Renames reach modules, ties, attention and fused linears, and replace whole parts of names alone") {
  const OrderedJson family = resolved(
      R"({"model_type": "child", "like": "parent",
          "rename": {"attn.o": "attn.dense", "attn": "self_attn", "mlp.up": "mlp.fc1", "model.embed": "model.wte"}})");
  CHECK(names_of(family)[0] == "model.wte");
  CHECK(names_of(family)[1] == "model.layers.*.self_attn.q");
  CHECK(names_of(family)[4] == "model.layers.*.attn.dense");  // the longest decides
  CHECK(names_of(family)[5] == "model.layers.*.mlp.fc1");
  CHECK(family.at("modules").back().at("tied_to") == "model.wte");
  CHECK(family.at("fused")[0].at("linears") == OrderedJson({"gate", "fc1"}));
}

TEST_CASE("What is removed takes the fused linears and the attention with it that need it") {
  const OrderedJson family = resolved(R"({"model_type": "child", "like": "parent", "remove": ["gate", "attn"]})");
  CHECK(names_of(family) ==
        std::vector<std::string>{"model.embed", "model.layers.*.mlp.up", "model.layers.*.mlp", "model.norm", "head"});
  CHECK(family.at("fused").empty());
  CHECK_FALSE(family.contains("attention"));
  const OrderedJson scale = resolved(R"({"model_type": "child", "like": "parent", "remove": ["scale"]})");
  CHECK(scale.at("modules").size() == parent().at("modules").size() - 1);
}

TEST_CASE("Modules that are there are changed key by key, others are added behind those near them") {
  const OrderedJson family = resolved(
      R"({"model_type": "child", "like": "parent", "modules": [
          {"name": "model.layers.*.attn.q", "bias": null, "heads": "4"},
          {"name": "model.layers.*.mlp", "parameter": "scale", "shape": ["2 * size"]},
          {"name": "model.wpe", "plan": "replicate", "shape": ["size"], "stage": "first"},
          {"name": "model.layers.*.attn.norm", "plan": "replicate", "shape": ["size"]},
          {"name": "model.layers.*.attn", "parameter": "sinks", "plan": "replicate", "shape": ["size"]},
          {"name": "model.layers.*.extra", "plan": "replicate", "shape": ["size"]},
          {"name": "model.last", "plan": "replicate", "shape": ["size"], "stage": "last"}]})");
  CHECK(family.at("modules")[3] ==
        OrderedJson::parse(
            R"({"name": "model.layers.*.attn.q", "plan": "colwise", "shape": ["size", "size"], "heads": "4"})"));
  CHECK(names_of(family) ==
        std::vector<std::string>{"model.embed", "model.wpe", "model.layers.*.attn", "model.layers.*.attn.q",
                                 "model.layers.*.attn.k", "model.layers.*.attn.v", "model.layers.*.attn.o",
                                 "model.layers.*.attn.norm", "model.layers.*.mlp.up", "model.layers.*.mlp.gate",
                                 "model.layers.*.mlp", "model.layers.*.extra", "model.norm", "head", "model.last"});
  CHECK(family.at("modules")[10].at("shape") == OrderedJson({"2 * size"}));
}

TEST_CASE("New modules of a layer take the place of those that are removed below the same parent, in their own order") {
  const auto order = [](const std::string& remove, const std::string& a, const std::string& b) {
    std::string text = R"({"model_type": "child", "like": "parent", "remove": )" + remove + R"(, "modules": [)";
    for (const std::string& name : {a, b})
      text += std::string(name == b ? ", " : "") + R"({"name": "model.layers.*.)" + name +
              R"(", "plan": "replicate", "shape": ["size"]})";
    std::vector<std::string> names;
    for (const std::string& name : names_of(resolved(text + "]}")))
      if (name.starts_with("model.layers.*.")) names.push_back(name.substr(15));
    return names;
  };
  using Names = std::vector<std::string>;
  CHECK(order(R"(["q", "k", "v"])", "attn.qkv", "attn.norm") ==
        Names{"attn.qkv", "attn.norm", "attn.o", "mlp.up", "mlp.gate", "mlp"});
  CHECK(order(R"(["attn"])", "attention.qkv", "attention.o") ==
        Names{"attention.qkv", "attention.o", "mlp.up", "mlp.gate", "mlp"});
  CHECK(order(R"(["k", "v"])", "attn.kv", "moe.router") ==
        Names{"attn.q", "attn.kv", "attn.o", "mlp.up", "mlp.gate", "mlp", "moe.router"});
  CHECK(order(R"(["gate"])", "mlp.experts.a", "other") ==
        Names{"attn.q", "attn.k", "attn.v", "attn.o", "mlp.up", "mlp.experts.a", "mlp", "other"});
}

TEST_CASE("Defaults and definitions are added to, attention can be taken away") {
  const OrderedJson family = resolved(
      R"({"model_type": "child", "like": "parent", "defaults": {"size": 8, "other": null},
          "define": {"twice": "2 * size"}, "attention": null})");
  CHECK(family.at("defaults") == OrderedJson::parse(R"({"bias": false, "size": 8, "other": null})"));
  CHECK(family.at("define") == OrderedJson::parse(R"({"twice": "2 * size"})"));
  CHECK_FALSE(family.contains("attention"));
}

TEST_CASE("Differences from what is not there are refused with their name") {
  check_each_refused([](const std::string& more) { resolved(R"({"model_type": "c", "like": )" + more + "}"); },
                     {.path = "child.json"},
                     {{R"("stranger")", "\"stranger\", which is not known"},
                      {R"("parent", "colour": 1)", "\"colour\" is not known"},
                      {R"("parent", "rename": {"attn.x": "y"})", "\"attn.x\""},
                      {R"("parent", "rename": {"att": "y"})", "\"att\""},
                      {R"("parent", "rename": ["attn"])", "\"rename\" is [\"attn\"], expected an object"},
                      {R"("parent", "remove": ["ate"])", "\"ate\""},
                      {R"("parent", "remove": "gate")", "\"remove\" is not an array"},
                      {R"("parent", "modules": [{"plan": "colwise"}])", "without a \"name\""},
                      {R"("parent", "defaults": 3)", "\"defaults\" is 3, expected an object"}});
}

TEST_CASE("A module that is there twice is not changed, as nobody knows which is meant") {
  const auto find = [](const std::string&) {
    OrderedJson twice = parent();
    twice["modules"][7] = twice["modules"][6];
    return std::optional(twice);
  };
  const OrderedJson derived = OrderedJson::parse(
      R"({"model_type": "c", "like": "parent", "modules": [{"name": "model.layers.*.mlp.gate", "plan": "replicate"}]})");
  CHECK_THAT(error_of([&] { resolve_family(derived, find, {"child.json"}); }).what(), Says("is listed 2 times"));
}

TEST_CASE("The text of a family is the same family") {
  CHECK(OrderedJson::parse(family_text(parent())) == parent());
  for (const std::string& name : known_model_types()) {
    INFO(name);
    const auto family = builtin_description(name);
    REQUIRE(family);
    CHECK(OrderedJson::parse(family_text(*family)) == *family);
    CHECK_FALSE(family->contains("like"));
  }
}

TEST_CASE("A description of somebody's own can be like a built-in family, or a larger one's language model") {
  const Family family = parse_family_text(R"({"model_type": "mine", "like": "llava", "remove": ["gate_proj"]})", "m");
  CHECK(family.model_type == "mine");
  CHECK(family.fused.empty());
  CHECK_FALSE(family.inference);
  CHECK(family.modules.size() + 1 == builtin_family("llama")->modules.size());
}

TEST_CASE("Experts of another kind have numbers after the first ones") {
  const auto model_of = [](const char* first) {
    const Family family = parse_family_text(std::string(R"({"model_type": "x", "layers": "l", "modules": [
          {"name": "l.*.e.*.up", "plan": "colwise", "shape": ["4", "2"], "experts": "2"},
          {"name": "l.*.e.*.up", "plan": "colwise", "shape": ["6", "2"], "experts": "2", "when": "true",
           "first_expert": ")") + first + "\"}]}",
                                            "x.json");
    ModelConfig config;
    config.path = "config.json";
    config.json = std::make_shared<const Json>(Json{{"num_hidden_layers", 1u}, {"tie_word_embeddings", false}});
    return instantiate(std::make_shared<const Family>(family), config);
  };
  const Model model = model_of("2");
  REQUIRE(model.parameters.size() == 4);
  CHECK(model.parameters[1].name == "l.0.e.1.up.weight");
  CHECK(model.parameters[1].expert == 1u);
  CHECK(model.parameters[2].name == "l.0.e.2.up.weight");
  CHECK(model.parameters[2].expert == 0u);
  CHECK(model.parameters[2].shape == Dims{6, 2});
  CHECK_NOTHROW(model_of("2 - 2"));
  for (const char* far : {"20000", "1099511627776", "16384"}) {
    CAPTURE(far);
    CHECK_THAT(error_of([&] { model_of(far); }).what(), Says("are more than any model has"));
  }
}

TEST_CASE("A list outside the layers has the numbers of its items, on the stage that it names") {
  const char* const text = R"({
    "model_type": "two", "layers": "decoder.layers", "num_layers": 1,
    "modules": [
      {"name": "encoder.layers.*.up", "plan": "colwise", "shape": [8, 4], "items": "encoder_layers", "stage": "first"},
      {"name": "encoder.layers.*.norm", "plan": "replicate", "shape": [4], "items": "encoder_layers", "stage": "first"},
      {"name": "decoder.layers.*.norms.*", "plan": "replicate", "shape": [4], "items": 2},
      {"name": "heads.*", "plan": "replicate", "shape": [4], "items": 2, "stage": "last"}
    ]})";
  const ModelConfig config{"m/config.json", std::make_shared<const Json>(Json::parse(R"({"encoder_layers": 2})")),
                           "two"};
  const Model model = instantiate(std::make_shared<const Family>(parse_family_text(text, "two.json")), config);
  std::vector<std::string> names;
  for (const ModelParameter& parameter : model.parameters) {
    names.push_back(parameter.name);
    CHECK(parameter.layer.has_value() == parameter.name.starts_with("decoder"));
    CHECK((parameter.stage == OuterStage::kLast) == parameter.name.starts_with("heads"));
    CHECK_FALSE(parameter.expert);
  }
  CHECK(names == std::vector<std::string>{"encoder.layers.0.up.weight", "encoder.layers.0.norm.weight",
                                          "encoder.layers.1.up.weight", "encoder.layers.1.norm.weight",
                                          "decoder.layers.0.norms.0.weight", "decoder.layers.0.norms.1.weight",
                                          "heads.0.weight", "heads.1.weight"});
  const Family derived = parse_family_text(
      R"({"model_type": "x", "like": "t5gemma", "modules": [{"name": "model.encoder.layers.*.extra", "plan": "replicate", "shape": [4], "items": 2, "stage": "first"}]})",
      "x.json");
  const auto extra = std::find_if(derived.modules.begin(), derived.modules.end(),
                                  [](const Family::Module& module) { return module.name.ends_with("extra"); });
  REQUIRE(extra != derived.modules.end());
  CHECK_FALSE(extra->is_layered());
  CHECK(std::find_if(derived.modules.begin(), extra,
                     [](const Family::Module& module) { return module.is_layered(); }) == extra);
}

TEST_CASE("The schema of descriptions has the keys that are read") {
  const auto schema = nlohmann::json::parse(read_file(testdata("../lib/reshard/specs/family.schema.json")));
  std::set<std::string> described, read = {"$schema", "like", "rename", "remove", "language_model"};
  for (const auto& [key, value] : schema.at("properties").items()) described.insert(key);
  for (const FamilyKey& key : family_keys()) read.insert(key.name);
  CHECK(described == read);
}

}  // namespace
}  // namespace reshard::test
