#include "reshard/specs/family/family.h"

#include <fstream>
#include <set>

#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/specs/model/language_model.h"
#include "support/files.h"
#include "support/golden.h"
#include "support/local_files.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using Lines = std::vector<std::string>;

ModelConfig config_of(const std::string& model_type, const Json& more = Json::object()) {
  Json json = {{"model_type", model_type}, {"hidden_size", 40},         {"intermediate_size", 48}, {"vocab_size", 64},
               {"num_hidden_layers", 1},   {"num_attention_heads", 10}, {"num_key_value_heads", 5}};
  json.update(more);
  // Numbers as a parser types them.
  return {"m/config.json", std::make_shared<const Json>(Json::parse(json.dump())), model_type};
}

Model model_of(const std::string& model_type, const Json& more = Json::object()) {
  const ModelConfig config = config_of(model_type, more);
  return instantiate(config);
}

/// One line a parameter: its name without the layer's prefix, its shape, how it is split, and "?" if it is optional.
Lines lines_of(const Model& model) {
  const std::string layer = "model.layers.0.";
  Lines lines;
  for (const ModelParameter& p : model.parameters) {
    std::string line = p.name.starts_with(layer) ? p.name.substr(layer.size()) : p.name;
    line += " " + to_string(p.shape);
    switch (p.plan) {
      case TensorParallelPlan::kColwise: line += " column"; break;
      case TensorParallelPlan::kRowwise: line += " row"; break;
      case TensorParallelPlan::kEmbeddingRowwise: line += " vocab"; break;
      case TensorParallelPlan::kPackedColwise: line += " packed column"; break;
      case TensorParallelPlan::kPackedRowwise: line += " packed row"; break;
      case TensorParallelPlan::kReplicate: line += " whole"; break;
    }
    lines.push_back(line + (p.is_bias ? " bias" : "") + (p.optional ? " ?" : ""));
  }
  return lines;
}

const Lines kHead = {"model.embed_tokens.weight [64, 40] vocab"};
const Lines kTail = {"input_layernorm.weight [40] whole", "post_attention_layernorm.weight [40] whole",
                     "model.norm.weight [40] whole", "lm_head.weight [64, 40] column"};
const Lines kProjections = {"self_attn.q_proj.weight [40, 40] column", "self_attn.k_proj.weight [20, 40] column",
                            "self_attn.v_proj.weight [20, 40] column", "self_attn.o_proj.weight [40, 40] row"};
const Lines kBiasedProjections = {"self_attn.q_proj.weight [40, 40] column", "self_attn.q_proj.bias [40] column bias",
                                  "self_attn.k_proj.weight [20, 40] column", "self_attn.k_proj.bias [20] column bias",
                                  "self_attn.v_proj.weight [20, 40] column", "self_attn.v_proj.bias [20] column bias"};
const Lines kOutput = {"self_attn.o_proj.weight [40, 40] row"};
const Lines kBiasedOutput = {"self_attn.o_proj.weight [40, 40] row", "self_attn.o_proj.bias [40] row bias"};
const Lines kRotary = {"self_attn.rotary_emb.inv_freq [2] whole ?"};
const Lines kMlp = {"mlp.gate_proj.weight [48, 40] column", "mlp.up_proj.weight [48, 40] column",
                    "mlp.down_proj.weight [40, 48] row"};
const Lines kBiasedMlp = {"mlp.gate_proj.weight [48, 40] column", "mlp.gate_proj.bias [48] column bias",
                          "mlp.up_proj.weight [48, 40] column",   "mlp.up_proj.bias [48] column bias",
                          "mlp.down_proj.weight [40, 48] row",    "mlp.down_proj.bias [40] row bias"};

Lines joined(std::initializer_list<Lines> parts) {
  Lines all;
  for (const Lines& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

TEST_CASE("Families have the parameters of their models, with biases by the switches that each knows") {
  const Json on = {{"attention_bias", true}, {"mlp_bias", true}, {"head_dim", 4}};
  const Json none = Json::object(), four = {{"head_dim", 4}};
  const Lines norms = {"self_attn.q_norm.weight [4] whole", "self_attn.k_norm.weight [4] whole"};
  const Lines plain = joined({kHead, kProjections, kRotary, kMlp, kTail});
  const Lines biased_qkv = joined({kHead, kBiasedProjections, kOutput, kRotary, kMlp, kTail});
  const std::tuple<const char*, Json, Lines> rows[] = {
      {"llama", none, plain},
      {"llama", on, joined({kHead, kBiasedProjections, kBiasedOutput, kRotary, kBiasedMlp, kTail})},
      {"mistral", none, plain},
      {"mistral", on, plain},
      {"granite", none, joined({kHead, kProjections, kMlp, kTail})},
      {"granite", on, joined({kHead, kBiasedProjections, kBiasedOutput, kBiasedMlp, kTail})},
      {"qwen2", none, biased_qkv},
      {"qwen2", {{"attention_bias", false}}, biased_qkv},
      {"qwen3", four, joined({kHead, kProjections, norms, kMlp, kTail})},
      {"qwen3", on, joined({kHead, kBiasedProjections, kBiasedOutput, norms, kMlp, kTail})}};
  for (const auto& [model_type, more, lines] : rows) {
    CAPTURE(model_type, more.dump());
    CHECK(lines_of(model_of(model_type, more)) == lines);
  }
}

TEST_CASE("Layers repeat with their numbers, and the ends lie on the first and last stage") {
  const Model model = model_of("granite", {{"num_hidden_layers", 3}});
  CHECK(model.layers == 3);
  CHECK(model.parameters.size() == 1 + 3 * 9 + 2);
  std::map<std::uint64_t, std::size_t> counts;
  for (const ModelParameter& p : model.parameters) {
    if (p.layer) {
      ++counts[*p.layer];
      CHECK(p.name.starts_with("model.layers." + std::to_string(*p.layer) + "."));
    }
    CHECK(p.name == p.module + (p.is_bias ? ".bias" : ".weight"));
    CHECK((p.stage == OuterStage::kLast) == (p.name == "model.norm.weight" || p.name == "lm_head.weight"));
  }
  CHECK(counts == std::map<std::uint64_t, std::size_t>{{0, 9}, {1, 9}, {2, 9}});
}

TEST_CASE("The head shares the embedding's bytes only where the configuration says so") {
  for (const std::string model_type : {"llama", "mistral", "qwen2", "qwen3", "granite"})
    for (const char* more : {"{}", R"({"tie_word_embeddings": null})", R"({"tie_word_embeddings": false})",
                             R"({"tie_word_embeddings": true})"}) {
      CAPTURE(model_type, more);
      std::map<std::string, std::string> shared;
      for (const ModelParameter& p : model_of(model_type, Json::parse(more)).parameters)
        if (!p.tied_to.empty()) shared[p.name] = p.tied_to;
      const bool tied = std::string(more).find("true") != std::string::npos;
      CHECK(shared.size() == (tied ? 1 : 0));
      if (tied) CHECK(shared["lm_head.weight"] == "model.embed_tokens.weight");
    }
}

TEST_CASE("A family has the parameters of every checkpoint of the reference") {
  std::set<std::string> seen;
  for (const fs::path& golden_case : golden_cases("optimum")) {
    INFO(golden_case.filename().string());
    const Json golden = Json::parse(read_file(golden_case / "golden.json"));
    const ModelConfig config = read_model_config(golden_case / "original");
    std::map<std::string, Dims> expected, found;
    for (const auto& [name, tensor] : golden["original"].items()) expected[name] = tensor["shape"].get<Dims>();
    for (const ModelParameter& p : instantiate(config).parameters)
      if (!p.optional && p.tied_to.empty()) found[p.name] = p.shape;
    CHECK(found == expected);
    seen.insert(config.model_type);
  }
  CHECK(seen == std::set<std::string>{"granite", "llama", "qwen2", "qwen3"});
}

/// The keys that the parser knows for the object that `pointer` leads to, as its hint lists them.
std::set<std::string> known_keys(const char* pointer) {
  Json family = Json::parse(R"({"model_type": "m", "layers": "l",
    "modules": [{"name": "l.*.a", "plan": "packed_colwise", "shape": [8], "packed": [{"size": 4}]}],
    "attention": {"module": "l.*", "query": "a", "key": "a", "value": "a", "output": "a", "fused": "f"},
    "fused": [{"module": "l.*", "name": "f", "linears": []}],
    "other_names": [{"program": "p", "entries": [{"entry": "e"}]}],
    "nxd_inference": {"entries": [{"entry": "e"}]}})");
  // What comes after the object is not read, and could be refused first.
  const bool is_top = *pointer == '\0';
  const std::string top = is_top ? std::string() : split(pointer, '/').at(1);
  for (const char* key : {"attention", "fused", "other_names", "nxd_inference"})
    if (key != top) family.erase(key);
  if (is_top) family["like"] = "llama";
  family[Json::json_pointer(pointer)]["############"] = 1;
  const std::string hint = error_of([&] { parse_family_text(family.dump(), "m.json"); }).hint();
  constexpr std::string_view kBegin = "known are ";
  INFO(hint);
  REQUIRE(hint.starts_with(kBegin));
  std::set<std::string> keys;
  for (const std::string& key : split(hint.substr(kBegin.size()), ','))
    keys.insert(key.substr(key.find_first_not_of(' ')));
  return keys;
}

TEST_CASE("The published schema has the plans and the keys that are read") {
  const Json schema = Json::parse(read_file(testdata("../lib/reshard/specs/family.schema.json")));
  const Json& top = schema.at("properties");
  const Json& module = schema.at("$defs").at("module").at("properties");
  const Json& scheme = schema.at("$defs").at("scheme").at("properties");
  const auto keys_of = [](const Json& properties) {
    std::set<std::string> keys;
    for (const auto& item : properties.items()) keys.insert(item.key());
    return keys;
  };
  std::set<std::string> top_keys = keys_of(top);
  CHECK(top_keys.erase("language_model") == 1);  // of a description without modules
  CHECK(known_keys("") == top_keys);
  CHECK(known_keys("/modules/0") == keys_of(module));
  CHECK(known_keys("/modules/0/packed/0") ==
        keys_of(module.at("packed").at("items").at("oneOf").at(1).at("properties")));
  CHECK(known_keys("/attention") == keys_of(top.at("attention").at("properties")));
  CHECK(known_keys("/fused/0") == keys_of(top.at("fused").at("items").at("properties")));
  CHECK(known_keys("/other_names/0") == keys_of(scheme));
  const std::set<std::string> of_entry = keys_of(schema.at("$defs").at("entry_of_scheme").at("properties"));
  std::set<std::string> known = known_keys("/nxd_inference/entries/0");
  known.merge(known_keys("/other_names/0/entries/0"));
  CHECK(known == of_entry);
  std::vector<std::string> words;
  for (const PlanWord& row : kPlanWords) words.emplace_back(row.word);
  auto published = module.at("plan").at("enum").get<std::vector<std::string>>();
  std::sort(words.begin(), words.end());
  std::sort(published.begin(), published.end());
  CHECK(published == words);
}

TEST_CASE("The known families are listed, sorted") {
  const Lines known = known_model_types();
  CHECK(known.size() > 100);
  CHECK(std::is_sorted(known.begin(), known.end()));
  for (const std::string& name : known) {
    INFO(name);
    REQUIRE(builtin_family(name) != nullptr);
    CHECK(builtin_family(name)->model_type == name);
    CHECK(builtin_family(name) == builtin_family(name));
  }
}

TEST_CASE("An unknown model_type is refused with the nearest that is known") {
  check_refused([] { instantiate(config_of("gem\nma")); }, {.kind = ErrorKind::kUnsupported,
                                                            .path = "m/config.json",
                                                            .says = "\"gem\\x0ama\"",
                                                            .hint = "the nearest known is gemma"});
}

TEST_CASE("A layer's number stands in for the star") {
  CHECK(expand_layer("model.layers.*.mlp", 12) == "model.layers.12.mlp");
  CHECK(expand_layer("model.norm", 12) == "model.norm");
}

}  // namespace
}  // namespace reshard::test
