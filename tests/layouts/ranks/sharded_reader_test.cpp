// Sharded checkpoints that are damaged, one patch each: what is refused, with which words.

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "reshard/io/memory_files.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"
#include "support/catch.h"
#include "support/errors.h"
#include "support/local_files.h"
#include "support/models.h"
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
    const Error error = ranks.planning_error();
    CHECK(error.kind() == ErrorKind::kBadInput);
    CHECK(error.path() == ranks.shards().string());
    CHECK_THAT(error.what(), Says("1 of the 12 ranks (tp 4 × pp 3) is missing: " + folder));
  }
}

TEST_CASE("A last tp rank that is missing in every stage is noticed by the metadata") {
  const Ranks ranks;
  for (const std::string stage : {"00", "01", "02"}) fs::remove_all(ranks.rank("tp_rank_03_pp_rank_" + stage));
  const Error error = ranks.planning_error();
  CHECK(error.kind() == ErrorKind::kBadInput);
  CHECK_THAT(error.what(), Says("3 of the 12 ranks"));
  CHECK_THAT(error.what(), Says("tp_rank_03_pp_rank_02"));
}

TEST_CASE("A last stage that is missing with its metadata is noticed by what others know of it") {
  const Ranks ranks;
  for (int t = 0; t < 4; ++t) fs::remove_all(ranks.rank("tp_rank_0" + std::to_string(t) + "_pp_rank_02"));
  fs::remove(ranks.metadata(2));
  fs::remove(ranks.temp() / "out/config.json");  // so that nothing else can tell
  const Error labelled = ranks.planning_error();
  CHECK(labelled.kind() == ErrorKind::kBadInput);
  CHECK_THAT(labelled.what(), Says("its metadata says that there are 3 pipeline ranks, but the folder holds 2"));
  CHECK_THAT(labelled.hint(), Says("missing"));
  for (const auto& entry : fs::recursive_directory_iterator(ranks.shards()))  // as NxD's, which say nothing
    if (entry.path().extension() == ".safetensors") write_safetensors(entry.path(), read_tensors(entry.path()));
  const Error error = ranks.planning_error();
  CHECK(error.kind() == ErrorKind::kBadInput);
  CHECK(error.path() == ranks.shards().string());
  CHECK_THAT(error.what(), Says("model.layers.4.self_attn"));
  CHECK_THAT(error.what(), Says("model.layers.5.mlp"));
}

TEST_CASE("A stage that is missing in the middle, or at the start, is named") {
  for (int stage = 0; stage < 2; ++stage) {
    const Ranks ranks;
    for (int t = 0; t < 4; ++t)
      fs::remove_all(ranks.rank("tp_rank_0" + std::to_string(t) + "_pp_rank_0" + std::to_string(stage)));
    const Error with_metadata = ranks.planning_error();
    CHECK(with_metadata.kind() == ErrorKind::kBadInput);
    CHECK_THAT(with_metadata.what(), Says("4 of the 12 ranks"));
    fs::remove(ranks.metadata(stage));
    const Error without = ranks.planning_error();
    CHECK(without.kind() == ErrorKind::kBadInput);
    CHECK_THAT(without.what(), Says("mp_metadata_pp_rank_" + std::to_string(stage) + ".json is missing"));
  }
}

TEST_CASE("A rank folder without weights is refused, and so is one with two kinds of them") {
  const Ranks ranks;
  const fs::path folder = ranks.rank("tp_rank_02_pp_rank_01");
  write_file(folder / "checkpoint.pt", "PK");
  const Error both = ranks.planning_error();
  CHECK(both.kind() == ErrorKind::kBadInput);
  CHECK(both.path() == folder.string());
  CHECK_THAT(both.what(), Says("checkpoint.pt"));
  fs::remove(folder / "model.safetensors");
  const Error damaged = ranks.planning_error();
  CHECK(damaged.kind() == ErrorKind::kBadInput);
  CHECK(damaged.path() == (folder / "checkpoint.pt").string());
  fs::remove(folder / "checkpoint.pt");
  const Error empty = ranks.planning_error();
  CHECK(empty.kind() == ErrorKind::kBadInput);
  CHECK(empty.path() == folder.string());
}

TEST_CASE("Two folders of one rank are refused") {
  const Ranks ranks;
  fs::create_directories(ranks.rank("tp_rank_1_pp_rank_001"));
  fs::copy(ranks.rank("tp_rank_01_pp_rank_01") / "model.safetensors",
           ranks.rank("tp_rank_1_pp_rank_001") / "model.safetensors");
  const Error error = ranks.planning_error();
  CHECK(error.kind() == ErrorKind::kBadInput);
  CHECK_THAT(error.what(), Says("duplicates tp rank 1, pp rank 1"));
}

TEST_CASE("A rank folder that is a link to nowhere is an Error that names it") {
  const Ranks ranks;
  fs::remove_all(ranks.rank("tp_rank_01_pp_rank_01"));
  fs::create_symlink("nowhere", ranks.rank("tp_rank_01_pp_rank_01"));
  const Error error = error_of([&] { plan_consolidate(ranks.request()); });
  CHECK(error.kind() == ErrorKind::kBadInput);
  CHECK_THAT(error.what(), Says("tp_rank_01_pp_rank_01"));
}

TEST_CASE("Ranks that disagree in names, shapes or dtypes are shown with file and tensor") {
  const std::string folder = "tp_rank_02_pp_rank_01";
  const auto check = [&](const Ranks& ranks, const std::string& tensor, const std::string& says) {
    const Error error = ranks.planning_error();
    CHECK(error.kind() == ErrorKind::kBadInput);
    CHECK(error.path() == (ranks.rank(folder) / "model.safetensors").string());
    CHECK(error.tensor() == tensor);
    CHECK_THAT(error.what(), Says(says));
  };
  const Ranks more;
  more.patch_rank(folder, [](TensorMap& tensors) { tensors["extra.weight"] = tensors[kUp]; });
  check(more, "extra.weight", "this rank holds it");
  const Ranks fewer;
  fewer.patch_rank(folder, [](TensorMap& tensors) { tensors.erase(kUp); });
  check(fewer, kUp, "but this rank does not");
  const Ranks dtype;
  dtype.patch_rank(folder, [](TensorMap& tensors) { tensors[kUp].dtype = DType::kF16; });
  check(dtype, kUp, "F16 [12, 16] on this rank, but BF16 [12, 16]");
  const Ranks shape;
  shape.patch_rank(folder, [](TensorMap& tensors) { tensors[kUp].shape = {16, 12}; });
  check(shape, kUp, "[16, 12] on this rank");
}

TEST_CASE("A rank file that is cut off is named") {
  const Ranks ranks;
  const fs::path file = ranks.rank("tp_rank_03_pp_rank_02") / "model.safetensors";
  fs::resize_file(file, fs::file_size(file) - 1);
  const Error error = ranks.planning_error();
  CHECK(error.kind() == ErrorKind::kBadInput);
  CHECK(error.path() == file.string());
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

TEST_CASE("Metadata that contradicts itself in T is refused") {
  const Ranks ranks;
  ranks.patch_metadata(1, [](nlohmann::json& json) { json["parameters"][kUp]["num_partitions"] = 2; });
  const Error error = ranks.planning_error();
  CHECK(error.kind() == ErrorKind::kBadInput);
  CHECK(error.path() == ranks.metadata(1).string());
  CHECK_THAT(error.what(), Says("contradicts itself"));
}

TEST_CASE("A parameter that the metadata lists and no file holds was not saved, and a note names it") {
  const Ranks ranks;
  ranks.patch_metadata(1, [](nlohmann::json& json) { json["parameters"]["ghost"] = json["parameters"][kUp]; });
  const auto job = plan_consolidate(ranks.request());
  CHECK(std::any_of(job->notes.begin(), job->notes.end(),
                    [](const std::string& note) { return note.find("ghost") != note.npos; }));
}

TEST_CASE("A tensor that the files hold and the metadata lacks is named") {
  const Ranks ranks;
  ranks.patch_metadata(1,
                       [](nlohmann::json& json) { json["parameters"].erase("model.layers.2.input_layernorm.weight"); });
  const Error error = ranks.planning_error();
  CHECK(error.kind() == ErrorKind::kBadInput);
  CHECK(error.tensor() == "model.layers.2.input_layernorm.weight");
  CHECK_THAT(error.what(), Says("mp_metadata_pp_rank_1.json does not list it"));
}

TEST_CASE("A tensor that a spec speaks of and the metadata lacks is named") {
  const Ranks ranks;
  ranks.patch_metadata(1, [](nlohmann::json& json) { json["parameters"].erase(kUp); });
  const Error error = ranks.planning_error();
  CHECK(error.kind() == ErrorKind::kBadInput);
  CHECK(error.path() == ranks.metadata(1).string());
  CHECK(error.tensor() == kUp);
  CHECK_THAT(error.what(), Says("a transformation spec speaks of it"));
}

TEST_CASE("An entry that contradicts its transformation spec is refused") {
  for (const auto& [key, value] : {std::pair<const char*, nlohmann::json>{"tensor_model_parallel", false},
                                   {"partition_dim", 1},
                                   {"partition_stride", 5}}) {
    INFO(key);
    const Ranks ranks;
    ranks.patch_metadata(1,
                         [&, key = key, value = value](nlohmann::json& json) { json["parameters"][kUp][key] = value; });
    const Error error = ranks.planning_error();
    CHECK(error.kind() == ErrorKind::kBadInput);
    CHECK(error.tensor() == kUp);
    CHECK_THAT(error.what(), Says("contradicts its transformation spec"));
  }
}

}  // namespace
}  // namespace reshard::test
