// Sharded checkpoints that are damaged, one patch each: what is refused, with which words.

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "reshard/io/memory_files.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/refusals.h"
#include "support/rewrite.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// A sharded llama with tp 4 (grouped-query attention) × pp 3, of six layers.
class Ranks {
 public:
  Ranks() {
    model.layers = 6;
    Random random(11);
    write_model(temp_ / "model", model, random_tensors(model, random));
    shard(shard_request(temp_ / "model", temp_ / "out", 4, 3));
  }
  fs::path shards() const { return temp_ / "out/tensor_parallel_shards"; }
  fs::path rank(const std::string& folder) const { return shards() / folder; }
  fs::path metadata(int pp_rank) const {
    return shards() / ("mp_metadata_pp_rank_" + std::to_string(pp_rank) + ".json");
  }

  template <typename Change>
  void patch_rank(const std::string& folder, Change&& change) const {
    TensorMap tensors = read_tensors(rank(folder) / "model.safetensors");
    change(tensors);
    rewrite_safetensors(rank(folder) / "model.safetensors", tensors);
  }
  template <typename Change>
  void patch_metadata(int pp_rank, Change&& change) const {
    auto json = nlohmann::json::parse(read_file(metadata(pp_rank)));
    change(json);
    write_file(metadata(pp_rank), json.dump());
  }
  ConsolidateRequest request() const {
    ConsolidateRequest request;
    request.source.path = temp_ / "out";
    request.output_directory = temp_ / "whole";
    return request;
  }
  /// The error of planning to consolidate what was patched on disk, from a copy in memory.
  Error planning_error() const {
    MemoryFiles files;
    load(files, temp_.path());
    return error_of([&] { plan_consolidate(files, request()); });
  }
  const TempDir& temp() const { return temp_; }
  TinyModel model;

 private:
  TempDir temp_;
};

const std::string kUp = "model.layers.2.mlp.gate_up_proj.weight";

TEST_CASE("A whole set of ranks is read with its numbers") {
  const Ranks ranks;
  const ShardedCheckpoint checkpoint = read_sharded_checkpoint(*find_shards(ranks.shards()));
  CHECK(checkpoint.tp == 4);
  CHECK(checkpoint.pp == 3);
  CHECK(checkpoint.files.at(2).at(3).path == ranks.rank("tp_rank_03_pp_rank_02") / "model.safetensors");
}

TEST_CASE("A missing rank is named, whichever it is") {
  for (const std::string folder : {"tp_rank_01_pp_rank_01", "tp_rank_03_pp_rank_02", "tp_rank_00_pp_rank_00"}) {
    INFO(folder);
    const Ranks ranks;
    fs::remove_all(ranks.rank(folder));
    check_error(ranks.planning_error(),
                {.path = ranks.shards(), .says = "1 of the 12 ranks (tp 4 × pp 3) is missing: " + folder});
  }
}

TEST_CASE("A last tp rank that is missing in every stage is noticed by the metadata") {
  const Ranks ranks;
  for (const std::string stage : {"00", "01", "02"}) fs::remove_all(ranks.rank("tp_rank_03_pp_rank_" + stage));
  check_error(ranks.planning_error(), {.says = {"3 of the 12 ranks", "tp_rank_03_pp_rank_02"}});
}

TEST_CASE("A last stage that is missing with its metadata is noticed by what others know of it") {
  const Ranks ranks;
  for (int t = 0; t < 4; ++t) fs::remove_all(ranks.rank("tp_rank_0" + std::to_string(t) + "_pp_rank_02"));
  fs::remove(ranks.metadata(2));
  fs::remove(ranks.temp() / "out/config.json");  // so that nothing else can tell
  check_error(ranks.planning_error(),
              {.says = "its metadata says that there are 3 pipeline ranks, but the folder holds 2", .hint = "missing"});
  for (const auto& entry : fs::recursive_directory_iterator(ranks.shards()))  // as NxD's, which say nothing
    if (entry.path().extension() == ".safetensors") write_safetensors(entry.path(), read_tensors(entry.path()));
  check_error(ranks.planning_error(),
              {.path = ranks.shards(), .says = {"model.layers.4.self_attn", "model.layers.5.mlp"}});
}

TEST_CASE("A stage that is missing in the middle, or at the start, is named") {
  for (int stage = 0; stage < 2; ++stage) {
    const Ranks ranks;
    for (int t = 0; t < 4; ++t)
      fs::remove_all(ranks.rank("tp_rank_0" + std::to_string(t) + "_pp_rank_0" + std::to_string(stage)));
    check_error(ranks.planning_error(), {.says = "4 of the 12 ranks"});
    fs::remove(ranks.metadata(stage));
    check_error(ranks.planning_error(), {.says = "mp_metadata_pp_rank_" + std::to_string(stage) + ".json is missing"});
  }
}

TEST_CASE("A rank folder that is a link to nowhere is an Error that names it") {
  const Ranks ranks;
  fs::remove_all(ranks.rank("tp_rank_01_pp_rank_01"));
  fs::create_symlink("nowhere", ranks.rank("tp_rank_01_pp_rank_01"));
  check_refused([&] { plan_consolidate(ranks.request()); }, {.says = "tp_rank_01_pp_rank_01"});
}

TEST_CASE("Metadata for another T is refused, naming its file") {
  for (const int tp : {2, 8}) {
    const Ranks ranks;
    for (int stage = 0; stage < 3; ++stage)
      ranks.patch_metadata(stage, [&](nlohmann::json& json) {
        for (auto& [name, parameter] : json["parameters"].items())
          if (parameter["tensor_model_parallel"]) parameter["num_partitions"] = tp;
        json["model_weight_transformation_specs"] = nlohmann::json::array();
      });
    const Error error = ranks.planning_error();
    INFO(error.what());
    CHECK(error.kind() == ErrorKind::kBadInput);
    if (tp == 2) {
      CHECK(error.path() == ranks.metadata(0).string());
      CHECK_THAT(error.what(), Says("2 tensor-parallel ranks"));
    } else {
      CHECK_THAT(error.what(), Says("12 of the 24 ranks"));
    }
  }
}

TEST_CASE("A parameter that the metadata lists and no file holds was not saved, and a note names it") {
  const Ranks ranks;
  ranks.patch_metadata(1, [](nlohmann::json& json) { json["parameters"]["ghost"] = json["parameters"][kUp]; });
  const auto job = plan_consolidate(ranks.request());
  CHECK(std::any_of(job->notes.begin(), job->notes.end(),
                    [](const std::string& note) { return note.find("ghost") != note.npos; }));
}

TEST_CASE("Ranks that are damaged, or differ from each other or from the metadata, are refused with the place") {
  using Json = nlohmann::json;
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
  const auto metadata = [](const std::function<void(Json&)>& change) {
    return [change](const Ranks& ranks) { ranks.patch_metadata(1, change); };
  };
  const auto weights = [](bool safetensors, bool pytorch) {
    return [=](const Ranks& ranks) {
      if (!safetensors) fs::remove(ranks.rank(kFile));
      if (pytorch) write_file(ranks.rank(kRank) / "checkpoint.pt", "PK");
    };
  };
  const auto of_up = [&](const char* key, const Json& value) {
    return metadata([=](Json& json) { json["parameters"][kUp][key] = value; });
  };
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
       {.tensor = "extra.weight", .says = "this rank holds it"}},
      {"a tensor less",
       rank([](TensorMap& tensors) { tensors.erase(kUp); }),
       kFile,
       {.tensor = kUp, .says = "but this rank does not"}},
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
       metadata([&](Json& json) { json["parameters"].erase(norm); }),
       "",
       {.tensor = norm, .says = "mp_metadata_pp_rank_1.json does not list it"}},
      {"a tensor that a spec speaks of and the metadata lacks",
       metadata([](Json& json) { json["parameters"].erase(kUp); }),
       kMetadata,
       {.tensor = kUp, .says = "a transformation spec speaks of it"}},
      {"an entry that is not parallel, unlike its spec",
       of_up("tensor_model_parallel", false),
       "",
       {.tensor = kUp, .says = contradicts}},
      {"an entry of another dim than its spec", of_up("partition_dim", 1), "", {.tensor = kUp, .says = contradicts}},
      {"an entry of another stride than its spec",
       of_up("partition_stride", 5),
       "",
       {.tensor = kUp, .says = contradicts}}};
  for (const Row& row : rows) DYNAMIC_SECTION(row.title) {
      const Ranks ranks;
      row.spoil(ranks);
      check_error(ranks.planning_error(),
                  with_common(row.refusal, *row.place ? Refusal{.path = ranks.shards() / row.place} : Refusal{}));
    }
}

}  // namespace
}  // namespace reshard::test
