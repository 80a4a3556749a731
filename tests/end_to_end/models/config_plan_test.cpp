// Models that no family describes, of a model_type that nobody knows: the plan in config.json says how they are split.

#include <nlohmann/json.hpp>
#include <set>

#include "reshard/layouts/core/checkpoint.h"
#include "support/checkpoints.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/planned.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// What one rank has of it.
TensorData rank_part(const Planned& planned, const TensorData& whole, std::uint64_t tp, std::uint64_t rank) {
  if (planned.dim < 0) return whole;
  const auto dim = static_cast<std::size_t>(planned.dim);
  std::uint64_t outer = 1, inner = bits(whole.dtype) / 8;
  for (std::size_t d = 0; d < dim; ++d) outer *= whole.shape[d];
  for (std::size_t d = dim + 1; d < whole.shape.size(); ++d) inner *= whole.shape[d];
  TensorData part{whole.dtype, whole.shape, {}};
  part.shape[dim] /= tp;
  const std::uint64_t matrix = whole.shape[dim] / planned.packed, size = matrix / tp;
  for (std::uint64_t o = 0; o < outer; ++o)
    for (std::uint64_t m = 0; m < planned.packed; ++m)
      part.bytes += whole.bytes.substr((o * whole.shape[dim] + m * matrix + size * rank) * inner, size * inner);
  return part;
}

TEST_CASE("A model that only its config.json's plan describes is sharded over meshes and consolidated again") {
  struct Form {
    const Layout* kind;
    Format format;
  };
  const Form forms[] = {{layout("ranks"), Format::kSafetensors}, {layout("ranks"), Format::kPytorch},
                        {layout("ranks"), Format::kXser},        {layout("optimum"), Format::kPytorch},
                        {layout("optimum"), Format::kXser},      {layout("presharded"), Format::kSafetensors}};
  for (const std::string prefix : {"model.", "transformer.decoder.", ""})
    for (const Form& form : forms)
      for (const std::uint32_t tp : {1, 2, 4})
        for (const std::uint32_t pp : {1, 2, 3}) {
          if (form.kind == layout("presharded") && pp > 1) continue;
          if (prefix != "model." && form.format == Format::kXser) continue;  // many files
          DYNAMIC_SECTION("prefix \"" << prefix << "\", " << form.kind->traits().name << " " << name(form.format)
                                      << ", tp " << tp << ", pp " << pp) {
            const TempDir temp;
            const std::vector<Planned> all = tensors_of(prefix, true);
            const TensorMap tensors = write_planned(temp / "model", all, json::parse(kPlannedConfig));
            ShardRequest request = shard_request(temp / "model", temp / "out", tp, pp);
            request.target.layout = form.kind;
            request.target.format = form.format;
            shard(request);
            CHECK((consolidated(temp / "out", temp / "whole") == tensors));
            if (form.kind != layout("ranks") || form.format != Format::kSafetensors) continue;

            std::size_t held_once = 0;
            for (const auto& [folder, held] : read_ranks(temp / "out")) {
              const std::uint64_t tp_rank = std::stoul(folder.substr(8, 2));
              for (const Planned& planned : all) {
                if (held.count(planned.name) == 0) continue;
                CAPTURE(folder, planned.name);
                CHECK((held.at(planned.name) == rank_part(planned, tensors.at(planned.name), tp, tp_rank)));
                held_once += tp_rank == 0 ? 1 : 0;
              }
              const std::uint64_t pp_rank = std::stoul(folder.substr(19, 2));
              CHECK((held.count(prefix + "embed_tokens.weight") == 1) == (pp_rank == 0));
              CHECK((held.count(prefix + "embed_positions.weight") == 1) == (pp_rank == 0));
              CHECK((held.count(prefix + "final.weight") == 1) == (pp_rank == pp - 1));
              CHECK((held.count("lm_head.weight") == 1) == (pp_rank == pp - 1));
            }
            CHECK(held_once == all.size());
          }
        }
}

TEST_CASE("Shards of a planned model without metadata are read by its plan") {
  const TempDir temp;
  const TensorMap tensors = write_planned(temp / "model", tensors_of("model.", true), json::parse(kPlannedConfig));
  shard(shard_request(temp / "model", temp / "out", 4, 2));
  for (const char* name : {"mp_metadata_pp_rank_0.json", "mp_metadata_pp_rank_1.json"})
    fs::remove(temp / "out/tensor_parallel_shards" / name);
  CHECK((consolidated(temp / "out", temp / "whole") == tensors));
}

TEST_CASE("Without metadata, a whole tensor of ranks that differ in it is refused") {
  const TempDir temp;
  write_planned(temp / "model", tensors_of("model.", true), json::parse(kPlannedConfig));
  shard(shard_request(temp / "model", temp / "out", 2));
  fs::remove(temp / "out/tensor_parallel_shards/mp_metadata_pp_rank_0.json");
  json other = json::parse(kPlannedConfig);
  other["base_model_tp_plan"].erase("layers.*.mlp.down_proj");
  write_file(temp / "out/config.json", other.dump());
  check_refused([&] { consolidated(temp / "out", temp / "whole"); }, {.says = "mlp.down_proj"});
}

TEST_CASE("A planned model goes from one mesh to another") {
  const TempDir temp;
  write_planned(temp / "model", tensors_of("model.", true), json::parse(kPlannedConfig));
  shard(shard_request(temp / "model", temp / "four", 4, 1));
  ConvertRequest request = convert_request(temp / "four", temp / "two");
  request.target.layout = layout("ranks");
  request.target.tp = 2;
  request.target.pp = 3;
  convert(request);
  shard(shard_request(temp / "model", temp / "direct", 2, 3));
  CHECK((read_ranks(temp / "two") == read_ranks(temp / "direct")));
}

TEST_CASE("Without base_model_pp_plan the embedding lies on the first stage, norm and head on the last") {
  const TempDir temp;
  json config = json::parse(kPlannedConfig);
  config.erase("base_model_pp_plan");
  std::vector<Planned> all = tensors_of("model.", true);
  for (Planned& planned : all)
    if (planned.name == "model.final.weight") planned.name = "model.norm.weight";
  const TensorMap tensors = write_planned(temp / "model", all, config);
  shard(shard_request(temp / "model", temp / "out", 1, 3));
  const auto ranks = read_ranks(temp / "out");
  CHECK(ranks.at("tp_rank_00_pp_rank_00").count("model.embed_tokens.weight") == 1);
  CHECK(ranks.at("tp_rank_00_pp_rank_02").count("model.norm.weight") == 1);
  CHECK(ranks.at("tp_rank_00_pp_rank_02").count("lm_head.weight") == 1);
  CHECK((consolidated(temp / "out", temp / "whole") == tensors));
}

TEST_CASE("A tied head shares the embedding's matrix on the last stage, and is consolidated as one") {
  json config = json::parse(kPlannedConfig);
  config["tie_word_embeddings"] = true;
  config["base_model_tp_plan"]["embed_tokens"] = "embedding_rowwise";
  for (const bool second_copy : {false, true})
    for (const Layout* const kind : {layout("ranks"), layout("optimum")}) {
      DYNAMIC_SECTION(kind->traits().name << (second_copy ? ", in the source twice" : ", in the source once")) {
        const TempDir temp;
        TensorMap tensors = write_planned(temp / "model", tensors_of("model.", false), config);
        const TensorMap once = tensors;
        if (second_copy) {
          tensors["lm_head.weight"] = tensors.at("model.embed_tokens.weight");
          write_safetensors(temp / "model/model.safetensors", tensors);
        }
        ShardRequest request = shard_request(temp / "model", temp / "out", 2, 2);
        request.target.layout = kind,
        request.target.format = kind == layout("optimum") ? Format::kPytorch : Format::kSafetensors;
        shard(request);
        const auto ranks = read_shards(temp / "out");
        const TensorMap& last = ranks.at("tp_rank_01_pp_rank_01");
        CHECK(last.at("lm_head.weight").shape == Dims{5, 16});
        CHECK((last.at("lm_head.weight") == last.at("model.embed_tokens.weight")));
        CHECK((consolidated(temp / "out", temp / "whole") == once));
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
  CHECK_THAT(checkpoint.notes[1], Says("not there: layers.*.mlp.dwn_proj"));
}

TEST_CASE("A known model_type and a description go before the plan in config.json") {
  const TempDir temp;
  TinyModel tiny;
  Random random(3);
  write_model(temp / "llama", tiny, random_tensors(tiny, random));
  json config = json::parse(read_file(temp / "llama/config.json"));
  config["base_model_tp_plan"] = {{"layers.*.mlp.up_proj", "no such word"}};
  write_file(temp / "llama/config.json", config.dump());
  CHECK_FALSE(read_checkpoint(temp / "llama", {ConfigUse::kStrict}).model->by_config_plan);
  config["model_type"] = "newcomer";
  write_file(temp / "llama/config.json", config.dump());
  const FamilySpec spec = builtin_family("llama");
  CHECK_FALSE(read_checkpoint(temp / "llama", {ConfigUse::kStrict, spec}).model->by_config_plan);
}

}  // namespace
}  // namespace reshard::test
