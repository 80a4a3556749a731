// Whether a head is the embedding under a second name: the files decide, in every layout, and not
// config.json.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "support/architectures.h"
#include "support/checkpoints.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/spoilers.h"
#include "support/torch_files.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

using nlohmann::json;

constexpr const char* kEmbed = "model.embed_tokens.weight";
constexpr const char* kOutput = "lm_head.weight";

json config_of(const fs::path& directory) {
  return json::parse(read_file(directory / "config.json"));
}

std::string notes_of(const fs::path& checkpoint) {
  return joined_notes(*plan_convert(convert_request(checkpoint, checkpoint.string() + "-unwritten", {.layout = "hf"})));
}

TensorMap whole_of(const fs::path& checkpoint) {
  return converted(checkpoint, checkpoint.string() + "-whole", {.layout = "hf"});
}

/// An untied qwen3, written in a layout with the config.json of a tied one next to it. Its head and its embedding are
/// equal but for one bit, or altogether.
struct UntiedHead : Input {
  enum Kind { kRandom, kOneBit, kEqual };
  UntiedHead(const std::string& name, Kind kind)
      : Input(fields_of(name), [&](const fs::path& directory) { return write(directory, kind); }) {
    merge_json(path() / "config.json", {{"tie_word_embeddings", true}});
  }

  static RequestFields fields_of(const std::string& name) {
    RequestFields fields{.layout = name};
    if (name != "hf") fields.tp = 2;
    if (name == "nxd" || name == "optimum" || name == "ranks") fields.pp = 2;
    return fields;
  }
  static TensorMap write(const fs::path& directory, Kind kind) {
    Random random(3);
    const TinyModel model{.model_type = "qwen3"};
    TensorMap tensors = random_tensors(model, random);
    if (kind != kRandom) tensors[kOutput] = tensors.at(kEmbed);
    if (kind == kOneBit) tensors[kOutput].bytes.back() ^= 1;
    write_model(directory, model, tensors);
    return tensors;
  }
};

constexpr const char* kLayouts[] = {"hf", "dcp", "ranks", "optimum", "nxd", "presharded", "nxdi"};

TEST_CASE("A head with values of its own is kept, with a note, though config.json ties it, in every layout") {
  for (const char* name : kLayouts)
    for (const auto kind : {UntiedHead::kRandom, UntiedHead::kOneBit}) {
      if (kind == UntiedHead::kOneBit && name != std::string("hf")) continue;  // of ranks, it is damage
      DYNAMIC_SECTION(name << (kind == UntiedHead::kOneBit ? ", in one element only" : "")) {
        const UntiedHead input(name, kind);
        CHECK_THAT(notes_of(input.path()), Says("lm_head.weight differs from model.embed_tokens.weight"));
        CHECK((whole_of(input.path()) == input.tensors));
        CHECK(config_of(input / "out-whole")["tie_word_embeddings"] == false);  // or loaders would take the embedding
        for (const std::string to : {"ranks", "vllm"}) {
          CAPTURE(to);
          RequestFields fields{.layout = to, .tp = 4};
          if (to == "ranks") fields.pp = 1;
          convert(input.path(), input / to, fields);
          CHECK(config_of(input / to)["tie_word_embeddings"] == false);
          CHECK((whole_of(input / to) == input.tensors));
        }
      }
    }
}

TEST_CASE("A tied head that equals the embedding is stored once, in every layout") {
  const std::string name = GENERATE(from_range(std::begin(kLayouts), std::end(kLayouts)));
  DYNAMIC_SECTION(name) {
    UntiedHead input(name, UntiedHead::kEqual);
    CHECK_THAT(notes_of(input.path()), !Says("differs"));
    input.tensors.erase(kOutput);
    CHECK((whole_of(input.path()) == input.tensors));
  }
}

TEST_CASE("A config.json of an embedding alone says at all levels that it is tied, and that of a head must") {
  const TempDir temp;
  Architecture of = architecture("qwen3_vl_own_head");
  of.facts["config"]["tie_word_embeddings"] = false;
  of.facts["config"]["text_config"].erase("tie_word_embeddings");
  TensorMap tensors = write_architecture(of, temp / "model");
  const auto embedding = std::find_if(tensors.begin(), tensors.end(), [](const auto& tensor) {
    return tensor.first.ends_with("language_model.embed_tokens.weight");
  });
  REQUIRE(embedding != tensors.end());
  for (const bool has_head : {false, true}) {
    CAPTURE(has_head);
    TensorMap stored = tensors;
    stored.erase(has_head ? embedding->first : kOutput);
    write_safetensors(temp / "model/model.safetensors", stored);
    const fs::path output = temp / (has_head ? "head" : "embedding");
    if (!has_head) {
      check_refused(
          [&] { convert(temp / "model", output, {.layout = "hf"}); },
          {.says = "is missing: lm_head.weight", .hint = "set \"tie_word_embeddings\" to true", .unwritten = output});
      merge_json(temp / "model/config.json", {{"text_config", {{"tie_word_embeddings", true}}}});
    } else {
      merge_json(temp / "model/config.json", {{"text_config", {{"tie_word_embeddings", false}}}});
      check_refused([&] { convert(temp / "model", output, {.layout = "hf"}); },
                    {.says = "is missing: " + embedding->first, .unwritten = output});
      merge_json(temp / "model/config.json", {{"text_config", {{"tie_word_embeddings", true}}}});
    }
    convert(temp / "model", output, {.layout = "hf"});
    const json config = config_of(output);
    CHECK(config["tie_word_embeddings"] == true);
    CHECK(config["text_config"]["tie_word_embeddings"] == true);
    CHECK(notes_of(output) == "\n");
  }
}

TEST_CASE("A config.json that says what the files hold stays as it is, to the byte") {
  const Input input({.model_type = "qwen3", .tied = GENERATE(false, true)});
  const std::string text = input.model.config().dump() + "  \n";
  write_file(input / "model/config.json", text);
  convert(input / "model", input / "out", {.layout = "hf"});
  CHECK(read_file(input / "out/config.json") == text);
}

TEST_CASE("An embedding that is stored under the tied head's name only is the embedding") {
  const Input input({.model_type = "qwen3", .tied = true}, {}, 5);
  TensorMap stored = input.tensors;
  auto embedding = stored.extract(kEmbed);
  embedding.key() = kOutput;
  stored.insert(std::move(embedding));
  write_model(input / "model", input.model, stored);
  CHECK_THAT(notes_of(input / "model"), Says("model.embed_tokens.weight is stored as lm_head.weight"));
  for (const char* name : {"ranks", "presharded", "dcp", "hf"}) {
    CAPTURE(name);
    RequestFields to{.layout = name};
    if (name != std::string("hf")) to.tp = 2;
    convert(input / "model", input / name, to);
    CHECK((whole_of(input / name) == input.tensors));
  }
}

TEST_CASE("A head that the ranks have lost, though their metadata lists it, is not the embedding") {
  const Input input({.model_type = "qwen3"}, {.layout = "optimum", .format = Format::kPytorch, .tp = 2}, 5);
  for (const char* rank : {"dp_rank_00_tp_rank_00_pp_rank_00.pt", "dp_rank_00_tp_rank_01_pp_rank_00.pt"}) {
    const fs::path file = input.path() / "shards/model" / rank;
    TensorMap tensors = read_torch_tensors(file);
    REQUIRE(tensors.erase(kOutput) == 1);
    write_torch(file, tensors);
  }
  check_refused([&] { whole_of(input.path()); }, {.tensor = kOutput,
                                                  .says = "is missing, but config.json asks for it",
                                                  .hint = "the checkpoint is incomplete",
                                                  .unwritten = input.path().string() + "-whole"});
  merge_json(input.path() / "config.json", {{"tie_word_embeddings", true}});
  CHECK(whole_of(input.path()).count(kOutput) == 0);
}

TEST_CASE("An embedding of a layer of multi-token prediction is not taken for the model's") {
  const TempDir temp;
  Architecture of = architecture("glm4_moe_lite");
  of.facts["config"]["tie_word_embeddings"] = true;
  TensorMap tensors = write_architecture(of, temp / "model");
  tensors.erase(kOutput);
  TensorMap stored = tensors;
  stored[kOutput] = stored.at(kEmbed);
  stored.erase(kEmbed);
  CHECK((back_from_shards(temp, stored) == tensors));
}

TEST_CASE("Levels of config.json that contradict each other about ties yield to the files, with a note") {
  const TempDir temp;
  Architecture of = architecture("qwen3_vl_own_head");
  for (const bool tied : {false, true}) {
    CAPTURE(tied);
    of.facts["config"]["tie_word_embeddings"] = tied;
    of.facts["config"]["text_config"]["tie_word_embeddings"] = !tied;
    TensorMap tensors = write_architecture(of, temp / "model");
    if (tied) tensors.erase(kOutput);
    write_safetensors(temp / "model/model.safetensors", tensors);
    const auto job = plan_shard(shard_request(temp / "model", temp / "none", 2));
    CHECK_THAT(joined_notes(*job),
               Says(tied ? "there is no lm_head.weight, so it is treated as tied to"
                         : "\"tie_word_embeddings\" is false, \"text_config.tie_word_embeddings\" is true"));
    if (!tied) CHECK(job->target.find_logical(kOutput));
  }
}

TEST_CASE("A head of another size than a tied embedding is refused by its own name") {
  Input input({.model_type = "qwen3", .tied = true}, {}, 7);
  input.tensors[kOutput] = random_tensor(input.random, DType::kBF16, {40, 16});
  write_model(input / "model", input.model, input.tensors);
  check_refused([&] { plan_shard(shard_request(input / "model", input / "out", 2)); },
                {.tensor = kOutput, .says = "has the shape [40, 16], but config.json asks for [32, 16]"});
}

TEST_CASE("A head's bias is its own, though the weight is tied") {
  for (const std::string name : {"phi", "gptj", "codegen"}) {
    CAPTURE(name);
    const TempDir temp;
    Architecture of = architecture(name);
    of.facts["config"]["tie_word_embeddings"] = true;
    TensorMap tensors = write_architecture(of, temp / "model");
    tensors.erase(kOutput);
    REQUIRE(tensors.count("lm_head.bias") == 1);
    CHECK((back_from_shards(temp, tensors) == tensors));
  }
}

}  // namespace
}  // namespace reshard::test
