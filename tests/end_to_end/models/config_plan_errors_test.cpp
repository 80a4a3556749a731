// Plans in config.json that make no sense, and models that do not fit theirs.

#include <nlohmann/json.hpp>

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

/// The error of `shard --tp` for the model with another config or other tensors.
Error refused(const json& config, const std::vector<Planned>& all = tensors_of("model.", true), std::uint32_t tp = 2) {
  const TempDir temp;
  write_planned(temp / "model", all, config);
  Error error = error_of([&] { plan_shard(shard_request(temp / "model", temp / "out", tp)); });
  CHECK(!fs::exists(temp / "out"));
  if (error.kind() == ErrorKind::kBadInput && error.tensor().empty())
    CHECK(error.path() == (temp / "model/config.json").string());
  return error;
}

TEST_CASE("A plan that makes no sense is refused with its key") {
  const std::pair<const char*, const char*> wrong[] = {
      {R"({"base_model_tp_plan": ["layers"]})", "\"base_model_tp_plan\" is [\"layers\"], expected an object"},
      {R"({"base_model_tp_plan": "colwise"})", "\"base_model_tp_plan\" is \"colwise\", expected an object"},
      {R"({"base_model_tp_plan": {"layers.*.mlp.up": "colwize"}})",
       "the plan of \"layers.*.mlp.up\" is \"colwize\", expected one of colwise, rowwise, packed_colwise"},
      {R"({"base_model_tp_plan": {"layers.*.mlp.up": ["colwise"]}})",
       "the plan of \"layers.*.mlp.up\" is [\"colwise\"]"},
      {R"({"_tp_plan": {"lm_head": 1}})", "_tp_plan: the plan of \"lm_head\" is 1"},
      {R"({"base_model_tp_plan": {"blocks.*.up": "colwise"}, "base_model_pp_plan": null})",
       "no tensor is called blocks.0."},
      {R"({"base_model_pp_plan": []})", "\"base_model_pp_plan\" is []"},
      {R"({"base_model_pp_plan": {"norm": [[], []]}})", "the key \"layers\" is missing"},
      {R"({"base_model_pp_plan": {"layers": [[]]}})", "two lists: what the module takes"},
      {R"({"num_attention_heads": "8"})", "\"num_attention_heads\" is \"8\""},
      {R"({"num_hidden_layers": 100000})", "\"num_hidden_layers\" is 100000"}};
  for (const auto& [patch, says] : wrong) {
    DYNAMIC_SECTION(patch) {
      json config = json::parse(kPlannedConfig);
      config.update(json::parse(patch));
      const Error error = refused(config);
      CHECK(error.kind() == ErrorKind::kBadInput);
      CHECK_THAT(error.what(), Says(says));
      if (error.message().find("colwize\"") != std::string::npos)
        CHECK_THAT(error.hint(), Says("did you mean \"colwise\"?"));
    }
  }
}

TEST_CASE("An empty plan is none, and so the model_type is not known") {
  json config = json::parse(kPlannedConfig);
  for (const json& none : {json::object(), json(nullptr)}) {
    DYNAMIC_SECTION(none.dump()) {
      config["base_model_tp_plan"] = none;
      check_error(refused(config), {.kind = ErrorKind::kUnsupported, .hint = "base_model_tp_plan"});
    }
  }
}

TEST_CASE("A TP degree that cuts a head or does not divide a size is refused with those that work") {
  const Error heads = refused(json::parse(kPlannedConfig), tensors_of("model.", true), 8);
  CHECK(heads.kind() == ErrorKind::kUsage);
  CHECK(heads.tensor() == "model.layers.0.self_attn.k_proj.weight");
  CHECK_THAT(heads.what(), Says("dim 0 has 4 groups of heads, which 8 ranks do not divide"));
  CHECK_THAT(heads.hint(), Says("heads are not replicated"));
  CHECK(heads.hint().ends_with("TP degrees that work for this model: 1, 2, 4"));

  json unsaid = json::parse(kPlannedConfig);  // as where layers differ in it
  unsaid["num_key_value_heads"] = nullptr;
  unsaid["head_dim"] = 4;
  CHECK_THAT(refused(unsaid, tensors_of("model.", true), 8).what(),
             Says("dim 0 has 4 groups of heads, which 8 ranks do not divide"));

  json other = json::parse(kPlannedConfig);  // keys that nothing is read from
  other["head_dim"] = 0;
  CHECK_THAT(refused(other, tensors_of("model.", true), 8).what(), Says("dim 0 has 4 groups of heads"));

  json headless = json::parse(kPlannedConfig);
  headless.erase("num_attention_heads");
  headless.erase("num_key_value_heads");
  check_error(refused(headless, tensors_of("model.", true), 16),
              {.kind = ErrorKind::kUsage,
               .says = "which 16 ranks do not divide",
               .hint = "TP degrees that work for this model: 1, 2, 4, 8"});
}

TEST_CASE("Heads that nothing counts give one note where the ranks may split them") {
  const TempDir temp;
  json config = json::parse(kPlannedConfig);
  const auto notes = [&](std::uint32_t tp) {
    write_planned(temp / "model", tensors_of("model.", true), config);
    std::string all;
    const auto job = plan_shard(shard_request(temp / "model", temp / "out", tp));
    for (const std::string& note : job->notes) all += note + "\n";
    return all;
  };
  CHECK_THAT(notes(4), !Says("attention heads"));
  config["n_head"] = config["num_attention_heads"];
  config.erase("num_attention_heads");
  CHECK_THAT(notes(4), !Says("attention heads"));  // those of keys and values are counted
  config.erase("num_key_value_heads");
  CHECK_THAT(notes(8), Says("config.json has no num_attention_heads, so it was not checked whether `tp` 8 splits "
                            "attention heads; add num_attention_heads and num_key_value_heads\n"));
  CHECK_THAT(notes(1), !Says("attention heads"));
}

TEST_CASE("Keys of base_model_pp_plan that name nothing are noted, and stages that nothing says") {
  const TempDir temp;
  json config = json::parse(kPlannedConfig);
  const auto notes = [&](std::uint32_t pp) {
    write_planned(temp / "model", tensors_of("model.", true), config);
    std::string all;
    const auto job = plan_shard(shard_request(temp / "model", temp / "out", 1, pp));
    for (const std::string& note : job->notes) all += note + "\n";
    return all;
  };
  CHECK_THAT(notes(2), !Says("base_model_pp_plan in config.json") && !Says("pipeline stage"));
  json& stages = config["base_model_pp_plan"];
  stages["finale"] = stages["final"];
  stages.erase("final");
  CHECK_THAT(notes(2), Says("base_model_pp_plan in config.json names modules that are not there: finale\n") &&
                           Says("on the first pipeline stage, as nothing says another: model.final.weight; "
                                "base_model_pp_plan in config.json names those of the last\n"));
  CHECK_THAT(notes(1), !Says("pipeline stage"));
}

TEST_CASE("Sizes that fall into no heads or halves are refused, naming the tensor") {
  json config = json::parse(kPlannedConfig);
  config["num_key_value_heads"] = 3;
  const Error heads = refused(config);
  CHECK(heads.kind() == ErrorKind::kBadInput);
  CHECK_THAT(heads.what(), Says("dim 0 has 16 elements, which 3 heads do not divide"));
  CHECK_THAT(heads.tensor(), Says("k_proj.weight"));

  std::vector<Planned> all = tensors_of("model.", true);
  for (Planned& planned : all)
    if (planned.name == "model.layers.1.mlp.gate_up_proj.bias") planned.shape = {23};
  check_error(refused(json::parse(kPlannedConfig), all, 1),
              {.tensor = "model.layers.1.mlp.gate_up_proj.bias",
               .says = "dim 0 has 23 elements, of which base_model_tp_plan makes two halves"});
}

TEST_CASE("A planned model that is quantised is not sharded") {
  json config = json::parse(kPlannedConfig);
  config["quantization_config"] = {{"quant_method", "fp8"}};
  check_error(refused(config),
              {.kind = ErrorKind::kUnsupported, .says = "does not say how scales are split", .hint = "`spec`"});

  const TempDir temp;  // nor is it where sizes are padded
  write_planned(temp / "model", tensors_of("model.", true), config);
  ShardRequest request = deployed_request(layout("presharded"), temp / "model", temp / "out", 2);
  request.target.options.set_flag("pad", true);
  CHECK(error_of([&] { plan_shard(request); }).kind() == ErrorKind::kUnsupported);
}

TEST_CASE("A name of layers in layers without end takes no time, and tensors named as filler are no filler") {
  const TempDir temp;
  json config = json::parse(kPlannedConfig);
  TensorMap tensors = write_planned(temp / "model", tensors_of("model.", true), config);
  std::string name = "model.";
  for (int i = 0; i < 20000; ++i) name += "layers.0.";
  tensors[name + "weight"] = {DType::kBF16, {1}, "ab"};
  write_safetensors(temp / "model/model.safetensors", tensors);
  CHECK(read_checkpoint(temp / "model", {ConfigUse::kLenient}).model);

  tensors.clear();
  tensors["model.layers.0.w.weight"] = {DType::kBF16, {5, 4}, std::string(40, 'w')};
  tensors["model.layers.0.w.weight (zeros)"] = {DType::kBF16, {3, 4}, std::string(24, 'z')};
  config = {{"model_type", "newcomer"}, {"num_hidden_layers", 1}, {"base_model_tp_plan", {{"layers.*.w", "colwise"}}}};
  write_file(temp / "model/config.json", config.dump());
  write_safetensors(temp / "model/model.safetensors", tensors);
  ShardRequest request = deployed_request(layout("presharded"), temp / "model", temp / "out", 2);
  request.target.options.set_flag("pad", true);
  shard(request);
  CHECK(
      read_weights(temp / "out").at("weights/tp1_sharded_checkpoint.safetensors").at("model.layers.0.w.weight").bytes ==
      std::string(16, 'w') + std::string(8, '\0'));
  CHECK((consolidated(temp / "out", temp / "whole") == tensors));
}

TEST_CASE("Many sizes that no model has are refused before they take memory") {
  const TempDir temp;
  json config = {
      {"model_type", "newcomer"}, {"num_hidden_layers", 16}, {"base_model_tp_plan", {{"layers.*.w", "colwise"}}}};
  TensorMap tensors;
  for (std::uint64_t layer = 0; layer < 16; ++layer)
    tensors["model.layers." + std::to_string(layer) + ".w.weight"] = {DType::kBF16, {16777213 - 2 * layer, 0}, {}};
  fs::create_directories(temp / "model");
  write_file(temp / "model/config.json", config.dump());
  write_safetensors(temp / "model/model.safetensors", tensors);
  ShardRequest request = deployed_request(layout("presharded"), temp / "model", temp / "out", 4);
  request.target.options.set_flag("pad", true);
  const Error error = error_of([&] { plan_shard(request); });
  CHECK(error.kind() == ErrorKind::kBadInput);
  CHECK_THAT(error.tensor(), Says(".w.weight"));
}

TEST_CASE("Of a planned model, what cannot be padded is refused") {
  const TempDir temp;
  write_planned(temp / "model", tensors_of("model.", true), json::parse(kPlannedConfig));
  ShardRequest request = deployed_request(layout("presharded"), temp / "model", temp / "out", 5);
  request.target.options.set_flag("pad", true);
  const Error error = error_of([&] { plan_shard(request); });
  CHECK(error.kind() == ErrorKind::kUsage);
  CHECK_THAT(error.what(), Says("cannot be padded"));  // a matrix packed with another
}

TEST_CASE("A layer of a planned model that has no tensors is missed") {
  json config = json::parse(kPlannedConfig);
  config["num_hidden_layers"] = 5;
  const TempDir temp;
  write_planned(temp / "model", tensors_of("model.", true), config);
  check_refused([&] { plan_shard(shard_request(temp / "model", temp / "out", 2)); },
                {.says = "of the model's 5 layers some have no tensors: model.layers.{3-4}"});

  // The stage that has the last layer is lost.
  config["num_hidden_layers"] = 3;
  write_file(temp / "model/config.json", config.dump());
  shard(shard_request(temp / "model", temp / "out", 2, 3));
  const fs::path folder = temp / "out/tensor_parallel_shards";
  for (const char* name : {"tp_rank_00_pp_rank_02", "tp_rank_01_pp_rank_02", "mp_metadata_pp_rank_2.json"})
    fs::remove_all(folder / name);
  CHECK_THAT(error_of([&] { consolidated(temp / "out", temp / "whole"); }).what(),
             Says("its metadata says that there are 3 pipeline ranks, but the folder holds 2"));
  for (const auto& entry : fs::recursive_directory_iterator(folder))  // as NxD's, which say nothing
    if (entry.path().extension() == ".safetensors") write_safetensors(entry.path(), read_tensors(entry.path()));
  check_refused([&] { consolidated(temp / "out", temp / "whole"); }, {.says = "model.layers.{2}"});
}

}  // namespace
}  // namespace reshard::test
