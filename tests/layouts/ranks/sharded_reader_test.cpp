// Sharded checkpoints that are damaged, one patch each, or whose metadata contradicts the files: what is refused, with
// which words.

#include <nlohmann/json.hpp>

#include "reshard/layouts/ranks/rank_format.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/rewrite.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// A sharded llama with tp 4 (grouped-query attention) × pp 3, of six layers, with biases.
struct Ranks : Input {
  Ranks() : Input({.layers = 6, .attention_bias = true}, {.layout = "ranks", .tp = 4, .pp = 3}, 11) {}

  fs::path shards() const { return temp / "out/tensor_parallel_shards"; }
  fs::path rank(const std::string& folder) const { return shards() / folder; }
  fs::path metadata(int pp_rank) const {
    return shards() / ("mp_metadata_pp_rank_" + std::to_string(pp_rank) + ".json");
  }
  void remove_stage(int pp_rank) const {
    for (std::uint32_t t = 0; t < 4; ++t)
      fs::remove_all(rank(rank_name({t, static_cast<std::uint32_t>(pp_rank)}, false)));
  }
  void patch_rank(const std::string& folder, const std::function<void(TensorMap&)>& change) const {
    TensorMap patched = read_tensors(rank(folder) / "model.safetensors");
    change(patched);
    rewrite_safetensors(rank(folder) / "model.safetensors", patched);
  }
  void patch_metadata(int pp_rank, const std::function<void(json&)>& change) const {
    json metadata_json = json::parse(read_file(metadata(pp_rank)));
    change(metadata_json);
    write_file(metadata(pp_rank), metadata_json.dump());
  }
  Request request() const { return consolidate_request(path(), temp / "whole"); }
  /// Plans to consolidate what was patched on disk, from a copy in memory.
  void check_unplanned(const Refusal& refusal) const {
    MemoryFiles files;
    load(files, temp.path());
    check_refused([&] { plan_consolidate(files, request()); }, refusal);
  }
};

const std::string kUp = "model.layers.2.mlp.gate_up_proj.weight";
const std::string kDown = "model.layers.2.mlp.down_proj.weight";

TEST_CASE("A whole set of ranks is read with its numbers") {
  const Ranks ranks;
  const ShardedCheckpoint checkpoint = read_sharded_checkpoint(*find_shards(ranks.shards()));
  CHECK(checkpoint.tp == 4);
  CHECK(checkpoint.pp == 3);
  CHECK(checkpoint.files.at(2).at(3).path == ranks.rank("tp_rank_03_pp_rank_02") / "model.safetensors");
}

TEST_CASE("Ranks and stages that are missing are named, whichever they are") {
  const Ranks intact;
  for (const std::string folder : {"tp_rank_01_pp_rank_01", "tp_rank_03_pp_rank_02", "tp_rank_00_pp_rank_00"}) {
    INFO(folder);
    fs::rename(intact.rank(folder), intact / "aside");
    intact.check_unplanned({.path = intact.shards(), .says = "1 of the 12 ranks (tp 4 × pp 3) is missing: " + folder});
    fs::rename(intact / "aside", intact.rank(folder));
  }
  const Ranks last_ranks;  // noticed by the metadata
  for (const std::string stage : {"00", "01", "02"}) fs::remove_all(last_ranks.rank("tp_rank_03_pp_rank_" + stage));
  last_ranks.check_unplanned({.says = {"3 of the 12 ranks", "tp_rank_03_pp_rank_02"}});
  for (int stage = 0; stage < 2; ++stage) {
    const Ranks ranks;
    ranks.remove_stage(stage);
    ranks.check_unplanned({.says = "4 of the 12 ranks"});
    fs::remove(ranks.metadata(stage));
    ranks.check_unplanned({.says = "mp_metadata_pp_rank_" + std::to_string(stage) + ".json is missing"});
  }
}

TEST_CASE("A last stage that is missing with its metadata is noticed by what others know of it") {
  const Ranks ranks;
  ranks.remove_stage(2);
  fs::remove(ranks.metadata(2));
  fs::remove(ranks / "out/config.json");  // so that nothing else can tell
  ranks.check_unplanned(
      {.says = "its metadata records that there are 3 pipeline ranks, but the folder contains 2", .hint = "missing"});
  for (const auto& entry : fs::recursive_directory_iterator(ranks.shards()))  // as NxD's, which say nothing
    if (entry.path().extension() == ".safetensors") write_safetensors(entry.path(), read_tensors(entry.path()));
  ranks.check_unplanned({.path = ranks.shards(), .says = {"model.layers.4.self_attn", "model.layers.5.mlp"}});
}

TEST_CASE("A rank folder that is a broken symbolic link is an Error that names it") {
  const Ranks ranks;
  fs::remove_all(ranks.rank("tp_rank_01_pp_rank_01"));
  fs::create_symlink("nowhere", ranks.rank("tp_rank_01_pp_rank_01"));
  check_refused([&] { plan_consolidate(ranks.request()); }, {.says = "tp_rank_01_pp_rank_01"});
}

TEST_CASE("Metadata for another T is refused, naming its file") {
  for (const int tp : {2, 8}) {
    const Ranks ranks;
    for (int stage = 0; stage < 3; ++stage)
      ranks.patch_metadata(stage, [&](json& metadata) {
        for (auto& [name, parameter] : metadata["parameters"].items())
          if (parameter["tensor_model_parallel"]) parameter["num_partitions"] = tp;
        metadata["model_weight_transformation_specs"] = json::array();
      });
    ranks.check_unplanned(tp == 2 ? Refusal{.path = ranks.metadata(0), .says = "2 tensor-parallel ranks"}
                                  : Refusal{.says = "12 of the 24 ranks"});
  }
}

TEST_CASE("A parameter that the metadata lists and no file holds was not saved, and a note names it") {
  const Ranks ranks;
  ranks.patch_metadata(1, [](json& stage) { stage["parameters"]["ghost"] = stage["parameters"][kUp]; });
  const auto job = plan_consolidate(ranks.request());
  CHECK_THAT(joined_notes(*job), Says("ghost"));
}

TEST_CASE("Ranks that are damaged, or differ from each other or from the metadata, are refused with the place") {
  struct Row {
    const char* title;
    std::function<void(const Ranks& ranks)> spoil;
    const char* place;  // in the folder of shards; empty: any
    Refusal refusal;
  };
  constexpr const char* kRank = "tp_rank_02_pp_rank_01";
  constexpr const char* kFile = "tp_rank_02_pp_rank_01/model.safetensors";
  constexpr const char* kMetadata = "mp_metadata_pp_rank_1.json";
  const auto rank = [](const std::function<void(TensorMap&)>& change) {
    return [change](const Ranks& ranks) { ranks.patch_rank(kRank, change); };
  };
  const auto metadata = [](const std::function<void(json&)>& change) {
    return [change](const Ranks& ranks) { ranks.patch_metadata(1, change); };
  };
  const auto weights = [](bool safetensors, bool pytorch) {
    return [=](const Ranks& ranks) {
      if (!safetensors) fs::remove(ranks.rank(kFile));
      if (pytorch) write_file(ranks.rank(kRank) / "checkpoint.pt", "PK");
    };
  };
  const auto of_up = [&](const char* key, const json& value) {
    return metadata([=](json& stage) { stage["parameters"][kUp][key] = value; });
  };
  const auto patched_spec = [](const std::string& module, const json& fields) {
    return [=](const Ranks& ranks) {
      ranks.patch_metadata(1, [&](json& stage) {
        for (json& entry : stage["model_weight_transformation_specs"])
          if (entry["module_fully_qualified_name"] == "model.layers.2" + module) entry["specs"][0][1].update(fields);
      });
    };
  };
  // With no config.json to help.
  const auto of_spec = [&](const std::string& module, const json& fields) {
    return [spoil = patched_spec(module, fields)](const Ranks& ranks) {
      fs::remove(ranks / "out/config.json");
      spoil(ranks);
    };
  };
  const std::string bias = "model.layers.2.self_attn.qkv_proj.bias_q";
  const std::string norm = "model.layers.2.input_layernorm.weight", contradicts = "contradicts its transformation spec";
  const Row rows[] = {
      {"weights of two formats", weights(true, true), kRank, {.says = "checkpoint.pt"}},
      {"weights that are no file of their format", weights(false, true), "tp_rank_02_pp_rank_01/checkpoint.pt", {}},
      {"no weights", weights(false, false), kRank, {}},
      {"two folders of one rank",
       [](const Ranks& ranks) {
         fs::create_directories(ranks.rank("tp_rank_2_pp_rank_001"));
         fs::copy(ranks.rank(kFile), ranks.rank("tp_rank_2_pp_rank_001") / "model.safetensors");
       },
       "",
       {.says = "duplicates tp rank 2, pp rank 1"}},
      {"a tensor more",
       rank([](TensorMap& tensors) { tensors["extra.weight"] = tensors[kUp]; }),
       kFile,
       {.tensor = "extra.weight", .says = "is on this rank, but not in"}},
      {"a tensor less",
       rank([](TensorMap& tensors) { tensors.erase(kUp); }),
       kFile,
       {.tensor = kUp, .says = "but not on this rank"}},
      {"another dtype",
       rank([](TensorMap& tensors) { tensors[kUp].dtype = DType::kF16; }),
       kFile,
       {.tensor = kUp, .says = "F16 [12, 16] on this rank, but BF16 [12, 16]"}},
      {"another shape",
       rank([](TensorMap& tensors) {
         tensors[kUp].shape = {16, 12};
       }),
       kFile,
       {.tensor = kUp, .says = "[16, 12] on this rank"}},
      {"a file that is cut off",
       [](const Ranks& ranks) { fs::resize_file(ranks.rank(kFile), fs::file_size(ranks.rank(kFile)) - 1); },
       kFile,
       {}},
      {"metadata of two T", of_up("num_partitions", 2), kMetadata, {.says = "contradicts itself"}},
      {"a tensor that the metadata lacks",
       metadata([&](json& stage) { stage["parameters"].erase(norm); }),
       "",
       {.tensor = norm, .says = "not listed in mp_metadata_pp_rank_1.json"}},
      {"a tensor that a spec speaks of and the metadata lacks",
       metadata([](json& stage) { stage["parameters"].erase(kUp); }),
       kMetadata,
       {.tensor = kUp, .says = "a transformation spec lists it"}},
      {"an entry that is not parallel, unlike its spec",
       of_up("tensor_model_parallel", false),
       "",
       {.tensor = kUp, .says = contradicts}},
      {"an entry of another dim than its spec", of_up("partition_dim", 1), "", {.tensor = kUp, .says = contradicts}},
      {"an entry of another stride than its spec",
       of_up("partition_stride", 5),
       "",
       {.tensor = kUp, .says = contradicts}},
      {"a stride that the family does not have",
       metadata([](json& stage) { stage["parameters"][kDown]["partition_stride"] = 2; }),
       kMetadata,
       {.tensor = kDown,
        .says = {"the metadata splits dim 1 with a stride of 2", "family llama splits dim 1 with a stride of 1"},
        .hint = "`spec`"}},
      {"packed matrices that the family does not have",
       metadata([](json& stage) {
         stage["parameters"][kDown]["packed"] = {{{"size", 8}, {"replicated", false}},
                                                {{"size", 16}, {"replicated", false}}};
       }),
       kMetadata,
       {.tensor = kDown, .says = {"splits dim 1 as 2 packed matrices", "with a stride of 1"}}},
      {"linears that are fused in another order than the family's",
       patched_spec(".mlp", {{"linear_names", {"up_proj", "gate_proj"}}}),
       kMetadata,
       {.says = {"the metadata fuses model.layers.2.mlp as up_proj, gate_proj", "family llama as gate_proj, up_proj"},
        .hint = "`spec`"}},
      {"projections under each other's names",
       patched_spec(".self_attn", {{"key_projection_name", "v_proj"}, {"value_projection_name", "k_proj"}}),
       kMetadata,
       {.says = {"as q_proj, v_proj, k_proj", "family llama as q_proj, k_proj, v_proj"}}},
      {"a spec of other rows than the files",
       of_spec(".self_attn", {{"q_output_size_per_partition", 8}, {"kv_output_size_per_partition", 8}}),
       "",
       {.tensor = "model.layers.2.self_attn.qkv_proj.weight_q",
        .says = {"has 4 rows", "but the metadata's spec has 8"}}},
      {"a spec whose own sizes contradict each other",
       of_spec(".self_attn", {{"kv_output_size_per_partition", 8}}),
       kMetadata,
       {.says = "contradicts itself"}},
      {"a fused spec of other sizes", of_spec(".mlp", {{"original_dims", {48, 24}}}), "", {.tensor = kUp}},
      {"a fused spec of an empty linear", of_spec(".mlp", {{"original_dims", {48, 0}}}), "", {.tensor = kUp}},
      {"a fused spec of one other size", of_spec(".mlp", {{"original_dims", {24, 28}}}), "", {.tensor = kUp}},
      {"a fused spec of sizes of zero", of_spec(".mlp", {{"original_dims", {0, 0}}}), "", {.says = "gate_up_proj"}},
      {"rows of a bias that contradict the spec",
       [&](const Ranks& ranks) {
         fs::remove(ranks / "out/config.json");
         for (std::uint32_t t = 0; t < 4; ++t)
           ranks.patch_rank(rank_name({t, 1}, false), [&](TensorMap& tensors) {
             tensors.at(bias) = {DType::kBF16, {2}, "abcd"};
           });
       },
       "",
       {.tensor = bias}}};
  for (const Row& row : rows) DYNAMIC_SECTION(row.title) {
      const Ranks ranks;
      row.spoil(ranks);
      ranks.check_unplanned(
          with_common(row.refusal, *row.place ? Refusal{.path = ranks.shards() / row.place} : Refusal{}));
    }
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

}  // namespace
}  // namespace reshard::test
