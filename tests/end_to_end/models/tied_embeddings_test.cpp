// Whether a head is the embedding under a second name: the files decide, in every layout, and not
// config.json.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "support/architectures.h"
#include "support/checkpoints.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/random.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

using json = nlohmann::json;

constexpr const char* kEmbed = "model.embed_tokens.weight";
constexpr const char* kOutput = "lm_head.weight";

TinyModel tiny(bool tied) {
  TinyModel model;
  model.model_type = "qwen3";
  model.tied = tied;
  return model;
}

bool has_note(const std::vector<std::string>& notes, const std::string& part) {
  return std::any_of(notes.begin(), notes.end(),
                     [&](const std::string& note) { return note.find(part) != std::string::npos; });
}

ConvertRequest to_whole(const fs::path& checkpoint, const fs::path& output) {
  ConvertRequest request = convert_request(checkpoint, output);
  request.target.layout = layout("hf");
  return request;
}

std::vector<std::string> notes_of(const fs::path& checkpoint, const TempDir& temp) {
  return plan_convert(to_whole(checkpoint, temp / "unwritten"))->notes;
}

/// All tensors of a checkpoint of any layout.
TensorMap whole_of(const fs::path& checkpoint, const fs::path& output) {
  convert(to_whole(checkpoint, output));
  return read_model(output);
}

json config_of(const fs::path& directory) {
  return json::parse(read_file(directory / "config.json"));
}

/// Writes `tensors`, of an untied model, in a layout, next to the config.json of a tied one.
void write_in(const std::string& layout_name, const TensorMap& tensors, const TempDir& temp) {
  write_model(temp / "model", tiny(false), tensors);
  ConvertRequest request = convert_request(temp / "model", temp / "out");
  request.target.layout = layout(layout_name);
  if (layout_name != "hf") request.target.tp = 2;
  if (layout_name == "nxd" || layout_name == "optimum" || layout_name == "ranks") request.target.pp = 2;
  convert(request);
  write_file(temp / "out/config.json", tiny(true).config().dump());
}

TEST_CASE("A head with values of its own is kept, with a note, though config.json ties it, in every layout") {
  const std::string name = GENERATE("hf", "dcp", "ranks", "optimum", "nxd", "presharded", "nxdi");
  DYNAMIC_SECTION(name) {
    const TempDir temp;
    Random random(3);
    const TensorMap tensors = random_tensors(tiny(false), random);
    write_in(name, tensors, temp);
    CHECK(has_note(notes_of(temp / "out", temp), "lm_head.weight differs from model.embed_tokens.weight"));
    CHECK((whole_of(temp / "out", temp / "whole") == tensors));
    CHECK(config_of(temp / "whole")["tie_word_embeddings"] == false);  // or loaders would take the embedding for it

    for (const std::string to : {"ranks", "vllm"}) {
      CAPTURE(to);
      ConvertRequest request = convert_request(temp / "out", temp / to);
      request.target.layout = layout(to);
      request.target.tp = 4;
      if (to == "ranks") request.target.pp = 1;
      convert(request);
      CHECK(config_of(temp / to)["tie_word_embeddings"] == false);
      CHECK((whole_of(temp / to, temp / (to + "-again")) == tensors));
    }
  }
}

TEST_CASE("A config.json of one stored weight says at all levels that head and embedding are tied") {
  const TempDir temp;
  Architecture of = architecture("qwen3_vl_own_head");
  of.facts["config"]["tie_word_embeddings"] = false;
  of.facts["config"]["text_config"].erase("tie_word_embeddings");
  TensorMap tensors = write_architecture(of, temp / "model");
  const auto embedding = std::find_if(tensors.begin(), tensors.end(), [](const auto& tensor) {
    return tensor.first.ends_with("language_model.embed_tokens.weight");
  });
  REQUIRE(embedding != tensors.end());
  for (const bool has_head : {true, false}) {
    CAPTURE(has_head);
    TensorMap stored = tensors;
    stored.erase(has_head ? embedding->first : kOutput);
    write_safetensors(temp / "model/model.safetensors", stored);
    const fs::path output = temp / (has_head ? "head" : "embedding");
    convert(to_whole(temp / "model", output));
    const json config = config_of(output);
    CHECK(config["tie_word_embeddings"] == true);
    CHECK(config["text_config"]["tie_word_embeddings"] == true);
    CHECK(notes_of(output, temp).empty());
  }
}

TEST_CASE("A config.json that says what the files hold stays as it is, to the byte") {
  const TempDir temp;
  Random random(3);
  const bool tied = GENERATE(false, true);
  write_model(temp / "model", tiny(tied), random_tensors(tiny(tied), random));
  const std::string text = tiny(tied).config().dump() + "  \n";
  write_file(temp / "model/config.json", text);
  convert(to_whole(temp / "model", temp / "out"));
  CHECK(read_file(temp / "out/config.json") == text);
}

TEST_CASE("A head that differs from the embedding in one element only is kept") {
  const TempDir temp;
  Random random(3);
  TensorMap tensors = random_tensors(tiny(false), random);
  tensors[kOutput] = tensors.at(kEmbed);
  tensors[kOutput].bytes.back() = static_cast<char>(tensors[kOutput].bytes.back() ^ 1);
  write_in("hf", tensors, temp);
  CHECK((whole_of(temp / "out", temp / "whole") == tensors));
}

TEST_CASE("A tied head that equals the embedding is stored once, in every layout") {
  const std::string name = GENERATE("hf", "dcp", "ranks", "optimum", "nxd", "presharded", "nxdi");
  DYNAMIC_SECTION(name) {
    const TempDir temp;
    Random random(3);
    TensorMap tensors = random_tensors(tiny(false), random);
    tensors[kOutput] = tensors.at(kEmbed);
    write_in(name, tensors, temp);
    CHECK_FALSE(has_note(notes_of(temp / "out", temp), "differs"));
    tensors.erase(kOutput);
    CHECK((whole_of(temp / "out", temp / "whole") == tensors));
  }
}

TEST_CASE("An embedding that is stored under the tied head's name only is the embedding") {
  for (const std::string name : {"ranks", "presharded", "dcp", "hf"}) {
    CAPTURE(name);
    const TempDir temp;
    Random random(5);
    TensorMap tensors = random_tensors(tiny(true), random);
    TensorMap stored = tensors;
    stored[kOutput] = stored.at(kEmbed);
    stored.erase(kEmbed);
    write_model(temp / "model", tiny(true), stored);
    CHECK(has_note(notes_of(temp / "model", temp), "model.embed_tokens.weight is stored as lm_head.weight"));
    ConvertRequest request = convert_request(temp / "model", temp / "out");
    request.target.layout = layout(name);
    if (name != "hf") request.target.tp = 2;
    convert(request);
    CHECK((whole_of(temp / "out", temp / "whole") == tensors));
  }
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
  of.facts["config"]["tie_word_embeddings"] = false;
  of.facts["config"]["text_config"]["tie_word_embeddings"] = true;
  TensorMap tensors = write_architecture(of, temp / "untied");
  const auto untied = plan_shard(shard_request(temp / "untied", temp / "none", 2));
  CHECK(has_note(untied->notes, "\"tie_word_embeddings\" is false, \"text_config.tie_word_embeddings\" is true"));
  CHECK(untied->target.find_logical(kOutput));

  of.facts["config"]["tie_word_embeddings"] = true;
  of.facts["config"]["text_config"]["tie_word_embeddings"] = false;
  tensors = write_architecture(of, temp / "tied");
  tensors.erase(kOutput);
  write_safetensors(temp / "tied/model.safetensors", tensors);
  const auto tied = plan_shard(shard_request(temp / "tied", temp / "none", 2));
  CHECK(has_note(tied->notes, "there is no lm_head.weight, so it is taken as tied to"));
}

TEST_CASE("A head of another size than a tied embedding is refused by its own name") {
  const TempDir temp;
  Random random(7);
  TensorMap tensors = random_tensors(tiny(false), random);
  tensors[kOutput] = random_tensor(random, DType::kBF16, {40, 16});
  write_model(temp / "model", tiny(true), tensors);
  check_refused([&] { plan_shard(shard_request(temp / "model", temp / "out", 2)); },
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
