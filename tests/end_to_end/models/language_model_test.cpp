// How the language model of a checkpoint is found, and what its parts are: prefixes, heads, other parts of larger models,
// variants that families are published in, families that are chosen.

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "reshard/base/strings.h"
#include "reshard/specs/family/family_parser.h"
#include "support/architectures.h"
#include "support/checkpoints.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/spoilers.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

using nlohmann::json;

std::unique_ptr<Job> plan(const TempDir& temp, std::uint32_t tp = 2) {
  return plan_shard(shard_request(temp / "model", temp / "unwritten", tp));
}

/// What the last of two stages holds after back_from_shards.
TensorMap last_stage(const TempDir& temp) {
  return read_ranks(temp / "out").at("tp_rank_01_pp_rank_01");
}

const std::string kLayers[] = {"model.layers.0.self_attn.", "model.layers.1.self_attn.", "model.layers.2.self_attn.",
                               "model.layers.3.self_attn."};

/// The tensors of `all` with other names.
TensorMap renamed(const TensorMap& all, const std::function<std::string(const std::string&)>& rename) {
  TensorMap other;
  for (const auto& [name, tensor] : all) other[rename(name)] = tensor;
  return other;
}

std::string with_prefix(const std::string& name, const std::string& from, const std::string& to) {
  return name.starts_with(from) ? to + name.substr(from.size()) : name;
}

TEST_CASE("The language model is found under whichever prefix its tensors have") {
  const auto [base, head] = GENERATE(table<std::string, std::string>({{"language_model.model.", "language_model."},
                                                                      {"model.language_model.", ""},
                                                                      {"model.text_model.", ""},
                                                                      {"model.", ""},
                                                                      {"thinker.model.", "thinker."},
                                                                      {"llm.", "llm."}}));
  const char* layout_name = GENERATE("ranks", "presharded");
  DYNAMIC_SECTION(base << ", " << layout_name) {
    const TempDir temp;
    TensorMap tensors = write_architecture(architecture("llava"), temp / "model");
    tensors = renamed(tensors, [&, &base_now = base, &head_now = head](const std::string& name) {
      return with_prefix(with_prefix(name, "language_model.model.", base_now), "language_model.lm_head",
                         head_now + "lm_head");
    });
    CHECK((back_from_shards(temp, tensors, layout_name) == tensors));
    const TensorMap rank = layout_name == std::string("ranks")
                               ? read_ranks(temp / "out").at("tp_rank_00_pp_rank_00")
                               : read_tensors(temp / "out/weights/tp0_sharded_checkpoint.safetensors");
    const std::string query = base + "layers.0.self_attn.q_proj.weight";
    REQUIRE(rank.count(query) == 1);
    CHECK(rank.at(query).shape[0] * 2 == tensors.at(query).shape[0]);
    REQUIRE(rank.count("multi_modal_projector.linear_1.weight") == 1);
    CHECK((rank.at("multi_modal_projector.linear_1.weight") == tensors.at("multi_modal_projector.linear_1.weight")));
  }
}

TEST_CASE("A base model without its prefix is sharded, with its head or without") {
  const char* name = GENERATE("llama", "qwen3", "opt", "bloom");
  const bool head = GENERATE(true, false);
  DYNAMIC_SECTION(name << (head ? ", with" : ", without") << " a head") {
    const TempDir temp;
    TensorMap tensors = write_architecture(architecture(name), temp / "model");
    if (!head) tensors.erase("lm_head.weight");
    tensors = renamed(
        tensors, [](const std::string& of) { return with_prefix(with_prefix(of, "model.", ""), "transformer.", ""); });
    CHECK((back_from_shards(temp, tensors, "ranks") == tensors));
  }
}

TEST_CASE("A tied head that is stored a second time is left out") {
  const TempDir temp;
  TensorMap tensors = write_architecture(architecture("cohere"), temp / "model");
  const TensorMap once = tensors;
  tensors["lm_head.weight"] = tensors.at("model.embed_tokens.weight");
  CHECK((back_from_shards(temp, tensors) == once));
}

TEST_CASE("Buffers of rotary embeddings that old exports carry are on every rank of their layers' stages") {
  const char* name = GENERATE("llama", "gemma", "phi", "seed_oss", "mixtral");
  DYNAMIC_SECTION(name) {
    const TempDir temp;
    TensorMap tensors = write_architecture(architecture(name), temp / "model");
    Random random(3);
    for (const std::string& layer : kLayers)
      tensors[layer + "rotary_emb.inv_freq"] = random_tensor(random, DType::kF32, {8});
    CHECK((back_from_shards(temp, tensors) == tensors));
    const std::string last = kLayers[3] + "rotary_emb.inv_freq";
    CHECK((last_stage(temp).at(last) == tensors.at(last)));
    CHECK(read_ranks(temp / "out").at("tp_rank_01_pp_rank_00").count(last) == 0);
    CHECK((back_from_shards(temp, tensors, "presharded") == tensors));
  }
}

TEST_CASE("A built-in family is used for a model of another name, and misfits are named") {
  const TempDir temp;
  Architecture of = architecture("smollm3");
  of.facts["config"]["model_type"] = "unheard_of";
  const TensorMap tensors = write_architecture(of, temp / "model");
  check_refused([&] { plan(temp); }, {.kind = ErrorKind::kUnsupported, .hint = "smollm3"});
  RequestFields fields{.tp = 2, .family = builtin_family("smollm3")};
  shard(temp / "model", temp / "out", fields);
  CHECK((consolidated(temp / "out", temp / "whole", fields.family) == tensors));
  fields.family = builtin_family("qwen3");
  const Error misfit = check_refused(
      [&] { shard(temp / "model", temp / "out", fields); },
      {.says = "the tensors are not those of the family qwen3: model.layers.0.self_attn.q_proj.weight has the shape "
               "[64, 64], expected [512, 64]; ",
       .hint = "`family`"});
  CHECK(std::count(misfit.message().begin(), misfit.message().end(), ';') == 4);  // five of many
}

TEST_CASE("A config.json that is not that of its tensors is refused with what it says") {
  struct Row {
    const char* architecture;
    std::function<void(json&)> change;
  };
  const TempDir temp;
  const auto without_text = [](json& config) { config.erase("text_config"); };
  const auto null_text = [](json& config) { config["text_config"] = nullptr; };
  const auto layers = [](int count) { return [count](json& config) { config["num_hidden_layers"] = count; }; };
  std::vector<Refused<Row>> rows{
      {"sizes that a text_config leaves out are its configuration class's",
       {"gemma3",
        [](json& config) {
          for (const char* key : {"num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"})
            config["text_config"].erase(key);
        }},
       {.says = "but config.json asks for [262208, 64]"}},
      {"a size that only the family's default explains",
       {"mixtral", [](json& config) { config["num_local_experts"] = nullptr; }},
       {.says = "config.json, with defaults of its model_type, asks for [8, ",
        .hint = "config.json has no num_local_experts, for which family mixtral uses 8; "}},
      {"a size whose default is another key",
       {"nemotron", [](json& config) { config.erase("num_key_value_heads"); }},
       {.says = "config.json, with defaults of its model_type, asks for [64, 64]",
        .hint = "config.json has no num_key_value_heads, for which family nemotron uses num_attention_heads; "}},
      {"a default that cannot be computed",
       {"llama",
        [](json& config) {
          config["hidden_size"] = 1;
          config.erase("head_dim");
        }},
       {.path = temp / "model/config.json",
        .says = "\"hidden_size / num_attention_heads\" cannot be computed: 1 / 4 is not a whole number",
        .hint = "config.json has no head_dim, for which family llama uses hidden_size / num_attention_heads"}},
      {"fewer layers",
       {"llama", layers(3)},
       {.says = "num_hidden_layers is 3 in config.json, but the files have layers 0 to 3", .hint = "config.json"}},
      {"more layers",
       {"llama", layers(5)},
       {.says = "num_hidden_layers is 5 in config.json, but the files have layers 0 to 3", .hint = "config.json"}},
      {"a text for a text_config",
       {"llava", [](json& config) { config["text_config"] = "llama"; }},
       {.path = temp / "model/config.json", .says = "\"text_config\" is \"llama\", expected an object"}}};
  for (const char* name : {"llava", "gemma3", "idefics2"}) {
    rows.push_back({std::string(name) + " without text_config",
                    {name, without_text},
                    {.path = temp / "model/config.json", .says = "\"text_config\" is missing"}});
    rows.push_back({std::string(name) + " with text_config null",
                    {name, null_text},
                    {.path = temp / "model/config.json", .says = "\"text_config\" is null"}});
  }
  check_refusals<Row>(
      [&](const Row& row) {
        Architecture of = architecture(row.architecture);
        row.change(of.facts["config"]);
        write_architecture(of, temp / "model");
        plan(temp);
      },
      {}, rows);
}

TEST_CASE("Where the embedding of a language model and its head are missing, they alone are named") {
  const TempDir temp;
  TensorMap tensors = write_architecture(architecture("llava"), temp / "model");
  REQUIRE(tensors.erase("language_model.model.embed_tokens.weight") == 1);
  REQUIRE(tensors.erase("language_model.lm_head.weight") == 1);
  check_error(refusal_of(temp, tensors), {.says = "2 tensors that config.json asks for are missing: language_model."});
}

TEST_CASE("The family of a larger model stands for that of its language model") {
  const TempDir temp;
  Architecture of = architecture("llava");
  of.facts["config"]["model_type"] = "unheard_of";
  const auto larger = builtin_family("llava");
  const std::string type = GENERATE("", "unheard_of_text", "llama");
  json& text = of.facts["config"]["text_config"];
  text.erase("model_type");
  if (!type.empty()) text["model_type"] = type;
  DYNAMIC_SECTION("model_type inside: " << type) {
    const TensorMap tensors = write_architecture(of, temp / "model");
    shard(temp / "model", temp / "out", {.tp = 2, .family = larger});
    CHECK((consolidated(temp / "out", temp / "whole", larger) == tensors));
  }
}

TEST_CASE("A language model with the model_type of a larger model is refused, and the hint does not name the same") {
  const TempDir temp;
  write_file(temp / "config.json",
             R"({"model_type": "x", "text_config": {"model_type": "glm_ocr", "hidden_size": 8}})");
  const Error error = error_of([&] { instantiate(read_model_config(temp.path())); });
  CHECK(error.kind() == ErrorKind::kUnsupported);
  CHECK_THAT(error.hint(), Says("give a built-in family with `family`") && !Says("the nearest known is glm_ocr;"));
}

TEST_CASE("A language model that is not known inside one that is gives a note") {
  const TempDir temp;
  Architecture of = architecture("llava");
  of.facts["config"]["text_config"]["model_type"] = "unheard_of";
  write_architecture(of, temp / "model");
  CHECK_THAT(joined_notes(*plan(temp)), Says("the model_type \"unheard_of\" in text_config is unknown; reading it as "
                                             "llama, which is usual in models of llava"));
}

TEST_CASE("Layers of multi-token prediction that a checkpoint lacks are left out with a note") {
  const TempDir temp;
  const char* name = GENERATE("glm4_moe_own_head", "glm4_moe_shared_head");
  TensorMap tensors = write_architecture(architecture(name), temp / "model");
  std::set<std::string> layers;
  for (const auto& [tensor, value] : tensors)
    if (tensor.starts_with("model.layers.")) layers.insert(split(tensor, '.').at(2));
  const std::string last = "model.layers." + *layers.rbegin() + ".";
  TensorMap partly = tensors;
  partly.erase(last + "eh_proj.weight");
  CHECK_THAT(refusal_of(temp, partly).what(), Says(last + "eh_proj.weight"));
  std::erase_if(tensors, [&](const auto& item) { return item.first.starts_with(last); });
  CHECK((back_from_shards(temp, tensors) == tensors));
  CHECK_THAT(joined_notes(*plan(temp)), Says("has no tensors of layer"));
}

TEST_CASE("Heads of reward models and classifiers take the place of the language model's") {
  const TempDir temp;
  Architecture of = architecture("llama");
  of.facts["config"]["tie_word_embeddings"] = false;
  TensorMap tensors = write_architecture(of, temp / "model");
  REQUIRE(tensors.count("lm_head.weight") == 1);
  Random random(2);
  SECTION("score") {
    tensors.erase("lm_head.weight");
    tensors["score.weight"] = random_tensor(random, DType::kBF16, {1, 64});
    CHECK((back_from_shards(temp, tensors) == tensors));
    CHECK(last_stage(temp).count("score.weight") == 1);
  }
  SECTION("a value head beside it") {
    tensors["v_head.summary.weight"] = random_tensor(random, DType::kBF16, {1, 64});
    tensors["v_head.summary.bias"] = random_tensor(random, DType::kBF16, {1});
    CHECK((back_from_shards(temp, tensors) == tensors));
  }
  SECTION("none, of a base model that is embedded in another") {
    of.facts["config"]["architectures"] = {"LlamaBidirectionalModel"};
    write_architecture(of, temp / "model");
    tensors.erase("lm_head.weight");
    CHECK((back_from_shards(temp, tensors) == tensors));
  }
  SECTION("beside a tied one, which stays where it is") {
    of.facts["config"]["tie_word_embeddings"] = true;
    write_architecture(of, temp / "model");
    tensors.erase("lm_head.weight");
    tensors["v_head.weight"] = random_tensor(random, DType::kBF16, {1, 64});
    CHECK((back_from_shards(temp, tensors) == tensors));
    CHECK(last_stage(temp).count("lm_head.weight") == 1);
  }
  SECTION("none, which is an error") {
    tensors.erase("lm_head.weight");
    check_error(refusal_of(temp, tensors), {.tensor = "lm_head.weight", .says = "is missing"});
  }
  SECTION("none, which is taken as tied, with a note, if config.json does not say") {
    of.facts["config"].erase("tie_word_embeddings");
    write_architecture(of, temp / "model");
    tensors.erase("lm_head.weight");
    CHECK((back_from_shards(temp, tensors) == tensors));
    CHECK_THAT(joined_notes(*plan(temp)), Says("there is no lm_head.weight, so it is treated as tied"));
  }
}

TEST_CASE("A class that is called a model may have a head") {
  const TempDir temp;
  const TensorMap tensors = write_architecture(architecture("gpt2"), temp / "model");
  CHECK((back_from_shards(temp, tensors) == tensors));
  CHECK(last_stage(temp).count("lm_head.weight") == 1);
}

TEST_CASE("The original LLaVA, whose configuration is that of its language model, is known") {
  const TempDir temp;
  Architecture of = architecture("llama");
  of.facts["config"]["model_type"] = "llava";
  of.facts["config"]["mm_vision_tower"] = "openai/clip-vit-large-patch14-336";
  TensorMap tensors = write_architecture(of, temp / "model");
  Random random(2);
  tensors["model.mm_projector.0.weight"] = random_tensor(random, DType::kBF16, {64, 32});
  tensors["model.image_newline"] = random_tensor(random, DType::kBF16, {64});
  CHECK((back_from_shards(temp, tensors) == tensors));
}

TEST_CASE("A tensor with the language model's own prefix that it does not name is refused") {
  const TempDir temp;
  TensorMap tensors = write_architecture(architecture("llava"), temp / "model");
  Random random(2);
  std::string prefix;
  for (const auto& [name, tensor] : tensors)
    if (name.ends_with("embed_tokens.weight")) prefix = name.substr(0, name.size() - 19);
  REQUIRE(prefix.find("language_model.") != std::string::npos);
  tensors[prefix + "extra.weight"] = random_tensor(random, DType::kBF16, {64});
  CHECK_THAT(refusal_of(temp, tensors).what(), Says(prefix + "extra.weight"));
}

TEST_CASE("Experts that a checkpoint lacks are noticed, in whichever variant it is published") {
  const auto [name, tensor] = GENERATE(table<const char*, const char*>({{"qwen3_5_moe", "experts.gate_up_proj"},
                                                                        {"qwen3_vl_moe", "experts.down_proj"},
                                                                        {"step3_vl", "moe.up_proj.weight"}}));
  const TempDir temp;
  TensorMap tensors = write_architecture(architecture(name), temp / "model");
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&, leaf = std::string(tensor)](const auto& item) {
    return item.first.ends_with(leaf);
  });
  REQUIRE(found != tensors.end());
  const std::string gone = found->first;
  tensors.erase(found);
  CHECK_THAT(refusal_of(temp, tensors).what(), Says(gone));
}

TEST_CASE("Stacked experts may be published each by itself") {
  const char* name = GENERATE("qwen3_vl_moe", "llama4");
  const TempDir temp;
  TensorMap tensors = write_architecture(architecture(name), temp / "model");
  Random random(4);
  TensorMap each;
  for (const auto& [full, tensor] : tensors) {
    const bool gate_up = full.ends_with(".experts.gate_up_proj");
    if (!gate_up && !full.ends_with(".experts.down_proj")) {
      each[full] = tensor;
      continue;
    }
    const std::string prefix = full.substr(0, full.rfind('.') + 1);
    for (std::uint64_t expert = 0; expert < tensor.shape[0]; ++expert) {
      const std::string own = prefix + std::to_string(expert) + ".";
      const std::uint64_t in = tensor.shape[1], out = tensor.shape[2];
      if (!gate_up) each[own + "down_proj.weight"] = random_tensor(random, DType::kBF16, {out, in});
      for (const char* part : {"gate_proj.weight", "up_proj.weight"})
        if (gate_up) each[own + part] = random_tensor(random, DType::kBF16, {out / 2, in});
    }
  }
  REQUIRE(each.size() > tensors.size());
  write_safetensors(temp / "model/model.safetensors", each);
  shard(shard_request(temp / "model", temp / "ranks", 2, 2));
  // Transformers 5 would pack qwen3_vl_moe's.
  CHECK((consolidated(temp / "ranks", temp / "back", {.options = {"experts=separate"}}) == each));
}

TEST_CASE("Norms of each head are a list, and not shared by expert-parallel ranks") {
  const TempDir temp;
  Architecture of = architecture("stablelm");
  of.facts["config"]["qk_layernorm"] = true;
  TensorMap tensors = write_architecture(of, temp / "model");
  const auto size = [&](const char* key) { return of.facts["config"][key].get<std::uint64_t>(); };
  const std::uint64_t heads = size("num_attention_heads"), kv_heads = size("num_key_value_heads");
  const std::uint64_t head_dim = size("hidden_size") / heads;
  Random random(2);
  for (std::uint64_t layer = 0; layer < size("num_hidden_layers"); ++layer) {
    const std::string module = "model.layers." + std::to_string(layer) + ".self_attn.";
    for (std::uint64_t head = 0; head < heads; ++head) {
      const std::string norm = "_layernorm.norms." + std::to_string(head) + ".weight";
      tensors[module + "q" + norm] = random_tensor(random, DType::kBF16, {head_dim});
      if (head < kv_heads) tensors[module + "k" + norm] = random_tensor(random, DType::kBF16, {head_dim});
    }
  }
  CHECK((back_from_shards(temp, tensors) == tensors));
  check_refused([&] { plan_shard(shard_request(temp / "model", temp / "other", {.tp = 2, .ep = 2})); },
                {.kind = ErrorKind::kUsage, .says = "has no experts"});
}

TEST_CASE("Heads that are split for inference are noted") {
  const TempDir temp;
  write_architecture(architecture("internlm2"), temp / "model");
  const auto notes = [&](std::uint32_t tp) {
    return joined_notes(*plan_shard(shard_request(temp / "model", temp / "out", {.layout = "presharded", .tp = tp})));
  };
  CHECK_THAT(notes(4), Says("split within heads or groups of heads, as NxD's shard_checkpoint does: "
                            "model.layers.*.attention.wo, model.layers.*.attention.wqkv"));
  CHECK_THAT(notes(2), !Says("split within heads"));
}

TEST_CASE("A scalar beside a query projection is no row of it") {
  const auto spec = std::make_shared<const Family>(parse_family_text(
      R"({"model_type": "llama", "like": "llama", "modules": [{"name": "model.layers.*.self_attn.q_proj",
          "plan": "replicate", "parameter": "scale", "shape": []}]})",
      "spec.json"));
  const Input input({.layout = "ranks", .tp = 4, .family = spec}, [](const fs::path& directory) {
    TensorMap tensors = write_architecture(architecture("llama"), directory);  // fewer key/value heads than ranks
    for (const std::string& layer : kLayers) tensors[layer + "q_proj.scale"] = {DType::kF32, {}, "abcd"};
    write_safetensors(directory / "model.safetensors", tensors);
    return tensors;
  });
  CHECK((input.whole() == input.tensors));
}

TEST_CASE("What no plan splits is named in one note") {
  const TempDir temp;
  const std::pair<const char*, const char*> cases[] = {
      {"jamba", "model.layers.*.feed_forward.router, model.layers.*.mamba"},
      {"llava", "multi_modal_projector, vision_tower"},
      {"mimo", "model.mtp_layers"},
      {"mixtral", "model.layers.*.block_sparse_moe.gate"},
      {"llama", nullptr}};
  for (const auto& [name, says] : cases) {
    CAPTURE(name);
    write_architecture(architecture(name), temp / "model");
    const auto job = plan(temp);
    const auto notes = std::count_if(job->notes.begin(), job->notes.end(), [&](const std::string& note) {
      return note.starts_with("replicated on every tensor-parallel rank: ");
    });
    CHECK(notes == (says ? 1 : 0));
    if (says) CHECK_THAT(joined_notes(*job), Says(says));
  }
}

}  // namespace
}  // namespace reshard::test
