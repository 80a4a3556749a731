// What config.json may leave out of a family's numbers, and what it may not say.
#include "reshard/base/json.h"
#include "reshard/specs/family/family.h"
#include "reshard/specs/family/family_parser.h"
#include "reshard/specs/model/language_model.h"
#include "reshard/specs/stages/stage_plan.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

Json base() {
  return {{"hidden_size", 64},
          {"intermediate_size", 96},
          {"vocab_size", 128},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 32},
          {"num_key_value_heads", 8},
          {"tie_word_embeddings", false},
          {"head_dim", 6}};
}

/// As if read from a file: numbers made in memory would be of another JSON type.
ModelConfig config_of(const std::string& model_type, const Json& json) {
  return {"m/config.json", std::make_shared<const Json>(Json::parse(json.dump())), model_type};
}

Model model_of(const std::string& model_type, const Json& json) {
  const ModelConfig config = config_of(model_type, json);
  return instantiate(config);
}

/// The error for a configuration with `key` set to `value`.
Error refused(const std::string& key, const Json& value, const std::string& model_type = "llama") {
  INFO(model_type << " with " << key << " = " << value);
  Json json = base();
  json[key] = value;
  return check_refused([&] { model_of(model_type, json); }, {.path = "m/config.json"});
}

struct Default {
  const char* model_type;
  const char* key;
  std::uint64_t absent, null;
};

// 32 heads of a hidden size of 64; from the reference's configuration classes.
constexpr Default kDefaults[] = {
    {"llama", "num_key_value_heads", 32, 32},
    {"granite", "num_key_value_heads", 32, 32},
    {"mistral", "num_key_value_heads", 8, 32},
    {"qwen2", "num_key_value_heads", 32, 32},
    {"qwen3", "num_key_value_heads", 32, 32},
    {"llama", "head_dim", 2, 2},
    {"granite", "head_dim", 2, 2},
    {"mistral", "head_dim", 2, 2},
    {"qwen2", "head_dim", 2, 2},
    {"qwen3", "head_dim", 128, 2},
};

TEST_CASE("A number that the configuration lacks, or has as null, has the family's default") {
  for (const Default& row : kDefaults) {
    DYNAMIC_SECTION(row.model_type << " " << row.key) {
      const auto number = [&](const Json& json) {
        const Model model = model_of(row.model_type, json);
        return std::string(row.key) == "head_dim" ? model.head_dim : model.kv_heads;
      };
      Json json = base();
      CHECK(number(json) == json[row.key].get<std::uint64_t>());
      json[row.key] = nullptr;
      CHECK(number(json) == row.null);
      json.erase(row.key);
      CHECK(number(json) == row.absent);
    }
  }
}

TEST_CASE("The default of qwen2 for key and value heads does not follow its heads") {
  Json json = base();
  json["num_attention_heads"] = 64;
  json.erase("num_key_value_heads");
  CHECK(model_of("qwen2", json).kv_heads == 32);
  json["num_key_value_heads"] = nullptr;
  CHECK(model_of("qwen2", json).kv_heads == 64);
}

TEST_CASE("The head size may differ from the hidden size over the heads") {
  const Model model = model_of("llama", base());
  CHECK(model.heads == 32);
  CHECK(model.kv_heads == 8);
  CHECK(model.head_dim == 6);
  CHECK(model.parameters[1].name == "model.layers.0.self_attn.q_proj.weight");
  CHECK(model.parameters[1].shape == Dims{192, 64});
  CHECK(model.parameters[2].shape == Dims{48, 64});
  CHECK(model.parameters[4].shape == Dims{64, 192});
}

TEST_CASE("A number without a default must be there, in every family") {
  for (const std::string model_type : {"llama", "mistral", "qwen2", "qwen3", "granite"})
    for (const char* key :
         {"hidden_size", "intermediate_size", "vocab_size", "num_hidden_layers", "num_attention_heads"}) {
      INFO(model_type << " " << key);
      Json json = base();
      json.erase(key);
      check_refused([&] { model_of(model_type, json); },
                    {.path = "m/config.json", .says = "\"" + std::string(key) + "\" is missing"});
      CHECK_THAT(refused(key, nullptr, model_type).what(),
                 Says("\"" + std::string(key) + "\" is null, expected a value"));
    }
}

TEST_CASE("A number that is not a positive whole one is refused with its key and value, and text is no expression") {
  for (const char* key : {"hidden_size", "intermediate_size", "vocab_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "head_dim"})
    for (const char* value : {"-1", "0", "1.5", "64.0", "true", "[64]", "{}", "1099511627777", "18446744073709551616",
                              "\"64\"", "\"vocab_size\"", "\"head_dim\""})
      check_error(refused(key, Json::parse(value)),
                  {.says = {"\"" + std::string(key) + "\" is ", "expected a positive whole number"}});
  CHECK_THAT(refused("hidden_size", "64").what(), Says("\"hidden_size\" is \"64\", expected"));
}

TEST_CASE("Heads that do not fall into groups are refused with both numbers") {
  check_error(refused("num_key_value_heads", 5), {.says = {"32 attention heads", "5 key/value heads"}});
  refused("num_key_value_heads", 64);
}

TEST_CASE("A hidden size that the heads do not divide is refused where the head size follows from it") {
  Json json = base();
  json["hidden_size"] = 65;
  CHECK(model_of("llama", json).head_dim == 6);
  json.erase("head_dim");
  check_refused([&] { model_of("llama", json); }, {.path = "m/config.json", .says = "65 / 32 is not a whole number"});
}

TEST_CASE("A switch that is not true or false is refused") {
  for (const char* key : {"tie_word_embeddings", "attention_bias", "mlp_bias"})
    for (const char* value : {"1", "0", "\"true\"", "[]"})
      check_error(refused(key, Json::parse(value)),
                  {.says = {"\"" + std::string(key) + "\" is ", "expected true or false"}});
}

TEST_CASE("Sizes that overflow 64 bits, and more layers than any model has, are refused at once") {
  Json json = base();
  json["num_attention_heads"] = json["num_key_value_heads"] = json["head_dim"] = std::uint64_t{1} << 40;
  check_refused([&] { model_of("llama", json); }, {.path = "m/config.json"});
  CHECK_THAT(refused("num_hidden_layers", std::uint64_t{1} << 40).what(), Says("1099511627776"));
  refused("num_hidden_layers", (1 << 20) + 1);
}

TEST_CASE("Head counts that specs cannot hold are refused and not cut to 32 bits") {
  Json json = base();
  json["num_attention_heads"] = 3 * (std::uint64_t{1} << 32);
  json["num_key_value_heads"] = std::uint64_t{1} << 32;
  json["head_dim"] = 2;
  json["intermediate_size"] = 96;
  json["vocab_size"] = 96;
  check_refused(
      [&] {
        const Model model = model_of("llama", json);
        plan_stages(model, 3, partition_evenly(2, {3, 1, 1}), {AttentionForm::kSeparate, 3},
                    [](const std::string&) { return false; });
      },
      {});
}

Json tiny_family() {
  return Json::parse(R"({
    "model_type": "tiny", "layers": "h", "defaults": {"tie_word_embeddings": false}, "modules": [
      {"name": "wte", "plan": "embedding_rowwise", "shape": ["vocab_size", "hidden_size"], "stage": "first"},
      {"name": "h.*.up", "plan": "colwise", "shape": ["4 * hidden_size", "hidden_size"], "bias": "always"},
      {"name": "h.*.down", "plan": "rowwise", "shape": ["hidden_size", "hidden_size * 4 / 2"]},
      {"name": "head", "plan": "colwise", "shape": ["vocab_size", "hidden_size"], "stage": "last", "tied_to": "wte"}],
    "fused": []})");
}

TEST_CASE("A family description without attention is filled in with the configuration's numbers") {
  const Family family = parse_family(tiny_family(), "tiny.json");
  CHECK(family.model_type == "tiny");
  CHECK(family.layers == "h");
  CHECK_FALSE(family.attention);
  const Model model = instantiate(std::make_shared<const Family>(family), config_of("tiny", base()));
  REQUIRE(model.parameters.size() == 1 + 2 * 3 + 1);
  CHECK(model.heads == 0);
  CHECK(model.parameters[1].name == "h.0.up.weight");
  CHECK(model.parameters[1].shape == Dims{256, 64});
  CHECK(model.parameters[2].shape == Dims{256});
  CHECK(model.parameters[3].shape == Dims{64, 128});
  CHECK(model.parameters[7].name == "head.weight");
}

TEST_CASE("A family description with a key missing or of another type, or that no model could follow, is refused") {
  const auto check = [](const std::string& pointer, const std::string& value, const Texts& says) {
    INFO(pointer << " = " << value);
    Json json = tiny_family();
    const Json::json_pointer place(pointer);
    if (value.empty())
      json[place.parent_pointer()].erase(place.back());
    else
      json[place] = Json::parse(value);
    check_refused([&] { parse_family(json, "tiny.json"); }, {.path = "tiny.json", .says = says});
  };
  const auto key_of = [](const std::string& pointer) { return "\"" + Json::json_pointer(pointer).back() + "\""; };
  for (const char* key :
       {"/model_type", "/layers", "/modules", "/modules/0/name", "/modules/0/plan", "/modules/0/shape"})
    for (const char* value : {"", "7"}) check(key, value, key_of(key));
  for (const char* key : {"/fused", "/num_layers", "/define", "/modules/1/when", "/modules/1/heads",
                          "/modules/1/experts", "/modules/1/packed", "/modules/1/dim", "/modules/1/parameter"})
    check(key, "-7", key_of(key));
  const std::tuple<const char*, const char*, const char*> rows[] = {
      {"/color", "7", "\"color\""},
      {"/modules/1/colour", "7", "\"colour\""},
      {"/modules/1/plan", "\"diagonal\"", "\"plan\""},
      {"/modules/1/shape", "[-7]", "\"shape\""},
      {"/modules/1/shape", "[6.5]", "\"shape\""},
      {"/modules/1/shape", "[null]", "\"shape\""},
      {"/modules/1/shape", "[[7]]", "\"shape\""},
      {"/modules/1/bias", "[true]", "\"bias\""},
      {"/modules/1/optional", "\"yes\"", "\"optional\""},
      {"/modules/3/tied_to", "0", "\"tied_to\""},
      {"/modules/1/shape", "[]", "0 dims"},                                       // a bias of no size
      {"/modules/2/shape", "[\"hidden_size\"]", "1 dims, which is too few"},      // row-wise without a dim 1
      {"/modules/3/stage", "\"middle\"", "\"first\" or \"last\""},                // neither
      {"/modules/3/tied_to", "\"wpe\"", "names the module wpe"},                  // no such module
      {"/modules/0/when", "\"vocab_size > 9\"", "not in every checkpoint"},       // the head is tied to it
      {"/fused", R"([{"module":"h.*","name":"x","linears":["no"]}])", "h.*.no"},  // no such module
      {"/defaults/hidden_size", R"({"absent": 1})", "\"absent\" and \"null\""},
      {"/defaults/hidden_size", "\"hidden_size\"", "depends on itself"},
      {"/modules/0/shape", R"(["vocab_size vocab_size", "hidden_size"])", "\"shape\""}};  // no operator
  for (const auto& [pointer, value, says] : rows) check(pointer, value, says);
}

TEST_CASE("A default may be a text in quotes") {
  Json json = tiny_family();
  json["defaults"]["act"] = "\"silu\"";
  json["modules"][0]["when"] = "act == \"silu\" and act != \"gelu\"";
  json["modules"][3].erase("tied_to");
  const auto family = std::make_shared<const Family>(parse_family(json, "tiny.json"));
  json["modules"][0].erase("when");
  const auto without = std::make_shared<const Family>(parse_family(json, "tiny.json"));
  const ModelConfig config = config_of("tiny", base());
  CHECK(instantiate(family, config).parameters.size() == instantiate(without, config).parameters.size());
}

TEST_CASE("More parameters than any model has are refused before they take memory") {
  ModelConfig config{"config.json", std::make_shared<const Json>(Json::parse(R"({"model_type": "mixtral",
      "num_hidden_layers": 16384, "num_local_experts": 16384, "hidden_size": 64, "intermediate_size": 64,
      "vocab_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4})")),
                     "mixtral"};
  check_refused([&] { instantiate(builtin_family("mixtral"), config, {}, 20000); },
                {.says = "more than 20000 parameters, more than any model"});
  CHECK(kMaxParameters < 1 << 22);
}

TEST_CASE("The language model that a larger family names is a built-in one that has modules") {
  for (const char* name : {"lama", "llava"})
    check_refused(
        [&] {
          parse_family(Json{{"model_type", "x"}, {"language_model", name}}, "x.json");
        },
        {.says = "\"language_model\" is \"" + std::string(name) + "\""});
  CHECK_NOTHROW(parse_family(Json{{"model_type", "x"}, {"language_model", "llama"}}, "x.json"));
}

}  // namespace
}  // namespace reshard::test
