// Models that no family describes, of a model_type that nobody knows: the plan in config.json says how they are split.

#include <nlohmann/json.hpp>

#include "reshard/layouts/core/checkpoint.h"
#include "support/checkpoints.h"
#include "support/families.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/planned.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// What each rank of the layout ranks holds, against the plan.
void check_ranks(const Input& input, const std::vector<Planned>& all, const std::string& prefix) {
  const std::uint64_t last = *input.to.pp - 1;
  std::size_t held_once = 0;
  for (const auto& [folder, held] : read_ranks(input.path())) {
    const std::uint64_t tp_rank = std::stoul(folder.substr(8, 2)), pp_rank = std::stoul(folder.substr(19, 2));
    for (const Planned& planned : all) {
      if (held.count(planned.name) == 0) continue;
      CAPTURE(folder, planned.name);
      const TensorData& whole = input.tensors.at(planned.name);
      CHECK((held.at(planned.name) == rank_slice(whole, planned.dim, *input.to.tp, tp_rank, planned.packed)));
      held_once += tp_rank == 0 ? 1 : 0;
    }
    for (const char* name : {"embed_tokens.weight", "embed_positions.weight"})
      CHECK((held.count(prefix + name) == 1) == (pp_rank == 0));
    for (const std::string& name : {prefix + "final.weight", std::string("lm_head.weight")})
      CHECK((held.count(name) == 1) == (pp_rank == last));
  }
  CHECK(held_once == all.size());
}

TEST_CASE("A model that only its config.json's plan describes is sharded over meshes and consolidated again") {
  const std::pair<const char*, Format> forms[] = {
      {"ranks", Format::kSafetensors}, {"ranks", Format::kPytorch}, {"ranks", Format::kXser},
      {"optimum", Format::kPytorch},   {"optimum", Format::kXser},  {"presharded", Format::kSafetensors}};
  for (const std::string prefix : {"model.", "transformer.decoder.", ""})
    for (const auto& [kind, format] : forms)
      for (const std::uint32_t tp : {1, 2, 4})
        for (const std::uint32_t pp : {1, 2, 3}) {
          if (kind == std::string("presharded") && pp > 1) continue;
          if (prefix != "model." && format == Format::kXser) continue;  // many files
          DYNAMIC_SECTION("prefix \"" << prefix << "\", " << kind << " " << name(format) << ", tp " << tp << ", pp "
                                      << pp) {
            const std::vector<Planned> all = tensors_of(prefix, true);
            const Input input({.layout = kind, .format = format, .tp = tp, .pp = pp}, [&](const fs::path& directory) {
              return write_planned(directory, all, json::parse(kPlannedConfig));
            });
            CHECK((input.whole() == input.tensors));
            if (kind == std::string("ranks") && format == Format::kSafetensors) check_ranks(input, all, prefix);
          }
        }
}

/// The model with its own config.json, or another.
Input planned(const RequestFields& to, const json& config = json::parse(kPlannedConfig),
              const std::vector<Planned>& all = tensors_of("model.", true)) {
  return Input(to, [&](const fs::path& directory) { return write_planned(directory, all, config); });
}

TEST_CASE("Shards of a planned model without metadata are read by its plan") {
  const Input input = planned({.layout = "ranks", .tp = 4, .pp = 2});
  for (const char* name : {"mp_metadata_pp_rank_0.json", "mp_metadata_pp_rank_1.json"})
    fs::remove(input / "out/tensor_parallel_shards" / name);
  CHECK((input.whole() == input.tensors));
}

TEST_CASE("By an empty plan, every rank has all tensors whole") {
  json config = json::parse(kPlannedConfig);
  config["base_model_tp_plan"] = json::object();
  config.erase("_tp_plan");
  for (const std::string prefix : {"model.", ""}) {
    CAPTURE(prefix);
    const std::vector<Planned> all = tensors_of(prefix, true);
    const Input input({.layout = "ranks", .format = Format::kSafetensors, .tp = 2, .pp = 2},
                      [&](const fs::path& model) { return write_planned(model, all, config); });
    TensorMap held;
    for (const auto& [folder, tensors] : read_ranks(input.path())) held.insert(tensors.begin(), tensors.end());
    CHECK((held == input.tensors));
    CHECK((input.whole() == input.tensors));
    for (const char* name : {"mp_metadata_pp_rank_0.json", "mp_metadata_pp_rank_1.json"})
      fs::remove(input / "out/tensor_parallel_shards" / name);
    CHECK((input.whole() == input.tensors));
  }
}

TEST_CASE("Without metadata, a whole tensor of ranks that differ in it is refused") {
  const Input input = planned({.layout = "ranks", .tp = 2});
  fs::remove(input / "out/tensor_parallel_shards/mp_metadata_pp_rank_0.json");
  json other = json::parse(kPlannedConfig);
  other["base_model_tp_plan"].erase("layers.*.mlp.down_proj");
  write_file(input / "out/config.json", other.dump());
  CHECK_THAT(input.refusal().what(), Says("mlp.down_proj"));
}

TEST_CASE("A planned model goes from one mesh to another") {
  const Input input = planned({.layout = "ranks", .tp = 4});
  convert(input.path(), input / "two", {.layout = "ranks", .tp = 2, .pp = 3});
  shard(shard_request(input / "model", input / "direct", 2, 3));
  CHECK((read_ranks(input / "two") == read_ranks(input / "direct")));
}

TEST_CASE("Without base_model_pp_plan the embedding lies on the first stage, norm and head on the last") {
  json config = json::parse(kPlannedConfig);
  config.erase("base_model_pp_plan");
  std::vector<Planned> all = tensors_of("model.", true);
  for (Planned& planned : all)
    if (planned.name == "model.final.weight") planned.name = "model.norm.weight";
  const Input input = planned({.layout = "ranks", .tp = 1, .pp = 3}, config, all);
  const auto ranks = read_ranks(input.path());
  CHECK(ranks.at("tp_rank_00_pp_rank_00").count("model.embed_tokens.weight") == 1);
  CHECK(ranks.at("tp_rank_00_pp_rank_02").count("model.norm.weight") == 1);
  CHECK(ranks.at("tp_rank_00_pp_rank_02").count("lm_head.weight") == 1);
  CHECK((input.whole() == input.tensors));
}

TEST_CASE("A tied head shares the embedding's matrix on the last stage, and is consolidated as one") {
  json config = json::parse(kPlannedConfig);
  config["tie_word_embeddings"] = true;
  config["base_model_tp_plan"]["embed_tokens"] = "embedding_rowwise";
  for (const bool second_copy : {false, true})
    for (const char* kind : {"ranks", "optimum"}) {
      DYNAMIC_SECTION(kind << (second_copy ? ", in the source twice" : ", in the source once")) {
        const Input input({.layout = kind, .tp = 2, .pp = 2}, [&](const fs::path& directory) {
          TensorMap once = write_planned(directory, tensors_of("model.", false), config);
          TensorMap twice = once;
          twice["lm_head.weight"] = once.at("model.embed_tokens.weight");
          if (second_copy) write_safetensors(directory / "model.safetensors", twice);
          return once;
        });
        const TensorMap last = read_shards(input.path()).at("tp_rank_01_pp_rank_01");
        CHECK(last.at("lm_head.weight").shape == Dims{5, 16});
        CHECK((last.at("lm_head.weight") == last.at("model.embed_tokens.weight")));
        CHECK((input.whole() == input.tensors));
      }
    }
}

TEST_CASE("That the plan was used is noted, and so are its keys that split nothing") {
  const TempDir temp;
  json config = json::parse(kPlannedConfig);
  config["base_model_tp_plan"]["layers.*.mlp.dwn_proj"] = "rowwise";
  config["base_model_tp_plan"]["layers.*.mlp"] = "gather";
  write_planned(temp / "model", tensors_of("model.", true), config);
  const Checkpoint checkpoint = read_checkpoint(temp / "model", {ConfigUse::kLenient});
  REQUIRE(checkpoint.model);
  CHECK(checkpoint.model->layers == 3);
  REQUIRE(checkpoint.notes.size() == 2);
  CHECK_THAT(checkpoint.notes[0], Says("the model_type \"newcomer\" is not known; the plan in config.json"));
  CHECK_THAT(checkpoint.notes[1], Says("do not exist: layers.*.mlp.dwn_proj"));
}

TEST_CASE("A known model_type and a description go before the plan in config.json") {
  const Input input;
  json config = input.model.config();
  config["base_model_tp_plan"] = {{"layers.*.mlp.up_proj", "no such word"}};
  write_file(input / "model/config.json", config.dump());
  CHECK_FALSE(read_checkpoint(input / "model", {ConfigUse::kStrict}).model->by_config_plan);
  config["model_type"] = "newcomer";
  write_file(input / "model/config.json", config.dump());
  CHECK_FALSE(read_checkpoint(input / "model", {ConfigUse::kStrict, builtin_family("llama")}).model->by_config_plan);
}

}  // namespace
}  // namespace reshard::test
