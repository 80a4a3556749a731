// Metadata whose specs contradict the files, and names of ranks.

#include <nlohmann/json.hpp>

#include "reshard/layouts/ranks/rank_folder.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Reads a sharded llama (tp 4, grouped-query attention, biases) after `change` was done to its one metadata file, as
/// consolidate does, with no config.json to help.
template <typename Change>
Error error_after(const TempDir& temp, Change&& change) {
  TinyModel model;
  model.attention_bias = true;
  Random random(2);
  write_model(temp / "model", model, random_tensors(model, random));
  shard(shard_request(temp / "model", temp / "out", 4));
  fs::remove(temp / "out/config.json");
  const fs::path path = temp / "out/tensor_parallel_shards/mp_metadata_pp_rank_0.json";
  json metadata = json::parse(read_file(path));
  change(metadata);
  write_file(path, metadata.dump());
  ConsolidateRequest request;
  request.source.path = temp / "out";
  return error_of([&] { plan_consolidate(request); });
}

json& spec_of(json& metadata, const std::string& module) {
  for (json& entry : metadata["model_weight_transformation_specs"])
    if (entry["module_fully_qualified_name"] == module) return entry["specs"][0][1];
  throw std::logic_error("no spec of " + module);
}

TEST_CASE("A spec with other rows than the files is refused, naming tensor and both numbers") {
  const TempDir temp;
  check_error(error_after(temp,
                          [](json& metadata) {
                            json& spec = spec_of(metadata, "model.layers.1.self_attn");
                            spec["q_output_size_per_partition"] = 8;
                            spec["kv_output_size_per_partition"] = 8;
                          }),
              {.tensor = "model.layers.1.self_attn.qkv_proj.weight_q", .says = {"has 4 rows", "says 8"}});
}

TEST_CASE("A spec whose own sizes contradict each other is refused") {
  const TempDir temp;
  const Error error = error_after(
      temp, [](json& metadata) { spec_of(metadata, "model.layers.0.self_attn")["kv_output_size_per_partition"] = 8; });
  CHECK(error.kind() == ErrorKind::kBadInput);
  CHECK_THAT(error.path(), Says("mp_metadata_pp_rank_0.json"));
  CHECK_THAT(error.what(), Says("contradicts itself"));
}

TEST_CASE("A spec with heads that cannot be is refused") {
  const TempDir temp;
  check_error(
      error_after(temp,
                  [](json& metadata) { spec_of(metadata, "model.layers.0.self_attn")["kv_size_multiplier"] = 3; }),
      {.says = "not a multiple of 3"});
}

TEST_CASE("A fused spec with other sizes than the files is refused, naming the tensor") {
  for (const json& dims : {json{48, 24}, json{48, 0}, json{24, 28}}) {
    const TempDir temp;
    INFO(dims.dump());
    check_error(error_after(temp,
                            [&](json& metadata) {
                              metadata["model_weight_transformation_specs"][1]["specs"][0][1]["original_dims"] = dims;
                            }),
                {.tensor = "model.layers.0.mlp.gate_up_proj.weight"});
  }
}

TEST_CASE("A fused spec with sizes of zero is refused") {
  const TempDir temp;
  check_error(error_after(temp,
                          [](json& metadata) {
                            spec_of(metadata, "model.layers.0.mlp")["original_dims"] = {0, 0};
                          }),
              {.says = "gate_up_proj"});
}

TEST_CASE("A fused spec whose sizes the ranks do not divide is refused") {
  const TempDir temp;
  check_error(error_after(temp,
                          [](json& metadata) {
                            spec_of(metadata, "model.layers.0.mlp")["original_dims"] = {22, 26};
                          }),
              {.says = "a size of 22, which 4 ranks do not divide"});
}

TEST_CASE("Bias rows that contradict the spec are refused as those of weights are") {
  const TempDir temp;
  TinyModel model;
  model.attention_bias = true;
  Random random(2);
  write_model(temp / "model", model, random_tensors(model, random));
  shard(shard_request(temp / "model", temp / "out", 4));
  fs::remove(temp / "out/config.json");
  for (int t = 0; t < 4; ++t) {
    const fs::path file =
        temp / ("out/tensor_parallel_shards/tp_rank_0" + std::to_string(t) + "_pp_rank_00/model.safetensors");
    TensorMap tensors = read_tensors(file);
    TensorData& bias = tensors.at("model.layers.0.self_attn.qkv_proj.bias_q");
    bias.shape = {2};
    bias.bytes.resize(4);
    write_safetensors(file, tensors);
  }
  ConsolidateRequest request;
  request.source.path = temp / "out";
  check_refused([&] { plan_consolidate(request); }, {.tensor = "model.layers.0.self_attn.qkv_proj.bias_q"});
}

TEST_CASE("Rank folders are named with two digits or more and read as numbers") {
  CHECK(rank_name({3, 0}, false) == "tp_rank_03_pp_rank_00");
  CHECK(rank_name({128, 100}, false) == "tp_rank_128_pp_rank_100");
  const auto rank = rank_of_name("tp_rank_128_pp_rank_007");
  REQUIRE(rank);
  CHECK(rank->tp_rank == 128);
  CHECK(rank->pp_rank == 7);
  CHECK(rank_name({3, 100}, true) == "dp_rank_00_tp_rank_03_pp_rank_100");
  CHECK((rank_of_name("dp_rank_04_ep_rank_03_tp_rank_02_pp_rank_01") == RankId{2, 1, 4, 3, true}));
  CHECK((rank_of_name("tp_rank_02_pp_rank_01_dp_rank_04") == RankId{2, 1, 4, 0}));
  for (const char* name :
       {"tp_rank_00", "tp_rank_00_pp_rank_", "tp_rank__pp_rank_00", "tp_rank_00_pp_rank_00.tensors",
        "tp_rank_-1_pp_rank_00", "tp_rank_ 1_pp_rank_00", "xtp_rank_00_pp_rank_00", "tp_rank_4096_pp_rank_00",
        "tp_rank_00_pp_rank_00_xx_rank_00", "tp_rank_00_pp_rank_00_tp_rank_00",
        "tp_rank_18446744073709551617_pp_rank_00", "tp_rank_00_pp_rank_00_", "dp_rank_00", ""}) {
    INFO(name);
    CHECK_FALSE(rank_of_name(name));
  }
}

TEST_CASE("Originals of two dtypes cannot be joined, and the error names both") {
  const TempDir temp;
  TinyModel model;
  Random random(2);
  TensorMap tensors = random_tensors(model, random);
  tensors["model.layers.1.mlp.up_proj.weight"].dtype = DType::kF16;
  write_model(temp / "model", model, tensors);
  check_refused([&] { plan_shard(shard_request(temp / "model", temp / "out", 2)); },
                {.kind = ErrorKind::kUnsupported,
                 .tensor = "model.layers.1.mlp.up_proj.weight",
                 .says = {"is F16", "gate_proj.weight is BF16"}});
}

TEST_CASE("Ranks from 100 on are read in the order of their numbers") {
  const TempDir temp;
  TinyModel model;
  model.hidden = 2;
  model.heads = 104;
  model.kv_heads = 104;
  model.head_dim = 2;
  model.intermediate = 104;
  model.vocab = 104;
  model.layers = 1;
  Random random(2);
  const TensorMap tensors = random_tensors(model, random);
  write_model(temp / "model", model, tensors);
  shard(shard_request(temp / "model", temp / "out", 104));
  CHECK(fs::exists(temp / "out/tensor_parallel_shards/tp_rank_103_pp_rank_00/model.safetensors"));
  const ShardedCheckpoint checkpoint = read_sharded_checkpoint(*find_shards(temp / "out"));
  REQUIRE(checkpoint.tp == 104);
  CHECK(checkpoint.files[0][100].path.parent_path().filename() == "tp_rank_100_pp_rank_00");
  CHECK(checkpoint.files[0][11].path.parent_path().filename() == "tp_rank_11_pp_rank_00");
  ConsolidateRequest request;
  request.source.path = temp / "out";
  request.output_directory = temp / "whole";
  consolidate(request);
  CHECK((read_model(temp / "whole") == tensors));
}

}  // namespace
}  // namespace reshard::test
