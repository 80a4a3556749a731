// Checkpoints that the reference systems' own code has sharded, held against ours: testdata/golden/optimum.

#include "support/golden.h"

#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::vector<fs::path> cases() {
  return golden_cases("optimum");
}

ShardRequest request_of(const fs::path& golden_case, const json& golden, const fs::path& output, bool cuts_by_hand) {
  const json& options = golden.at("case");
  ShardRequest request = shard_request(golden_case / "original", output, options.at("tp"), options.at("pp"));
  request.target.vpp = options.at("vpp");
  request.target.options.set_flag("fuse-qkv", options.at("fuse_qkv"));
  if (!options.at("kv_multiplier").is_null())
    request.target.options.set_number("kv-size-multiplier", options.at("kv_multiplier"));
  if (cuts_by_hand) {
    request.target.pp.reset();  // what the cuts make
    request.target.pipeline_cuts = golden.at("pipeline_cuts").get<std::vector<std::string>>();
  }
  return request;
}

void check_ranks(const fs::path& golden_case, const json& golden, const fs::path& output) {
  const auto ranks = read_ranks(output);
  CHECK(ranks.size() == golden.at("files").size());
  for (const auto& [file, tensors] : golden.at("files").items()) {
    INFO(file);
    REQUIRE(ranks.count(rank_of_reference(file)) == 1);
    CHECK(describe_tensors(ranks.at(rank_of_reference(file))) == tensors);
  }
  std::size_t metadata_files = 0;
  for (const auto& entry : fs::directory_iterator(golden_case / "sharded/shards")) {
    if (entry.path().extension() != ".json") continue;
    const fs::path ours = output / "tensor_parallel_shards" / entry.path().filename();
    INFO(ours);
    CHECK(json::parse(read_file(ours)) == json::parse(read_file(entry.path())));
    ++metadata_files;
  }
  CHECK(metadata_files == golden.at("case").at("pp").get<std::size_t>());
  std::size_t entries = 0;
  for (const auto& entry : fs::directory_iterator(output / "tensor_parallel_shards")) entries += entry.exists() ? 1 : 0;
  CHECK(entries == ranks.size() + metadata_files);
  CHECK(read_file(output / "config.json") == read_file(golden_case / "original/config.json"));
}

TEST_CASE("Every golden case is sharded into the tensors and metadata that the reference wrote") {
  REQUIRE(cases().size() == 9);
  for (const fs::path& golden_case : cases()) {
    const json golden = json::parse(read_file(golden_case / "golden.json"));
    for (const bool cuts_by_hand : {false, true}) {
      if (cuts_by_hand && golden.at("pipeline_cuts").empty()) continue;
      DYNAMIC_SECTION(golden_case.filename().string() << (cuts_by_hand ? ", cuts by hand" : "")) {
        const TempDir temp;
        shard(request_of(golden_case, golden, temp / "out", cuts_by_hand));
        check_ranks(golden_case, golden, temp / "out");
      }
    }
  }
}

TEST_CASE("The cuts that are worked out for a golden case are those of the reference") {
  std::size_t with_cuts = 0;
  for (const fs::path& golden_case : cases()) {
    const json golden = json::parse(read_file(golden_case / "golden.json"));
    const auto cuts = golden.at("pipeline_cuts").get<std::vector<std::string>>();
    with_cuts += cuts.empty() ? 0 : 1;
    DYNAMIC_SECTION(golden_case.filename().string()) {
      const TempDir temp;
      const auto job = plan_shard(request_of(golden_case, golden, temp / "out", false));
      CHECK(job->cut_names == cuts);
    }
  }
  CHECK(with_cuts >= 4);
}

TEST_CASE("Consolidating a sharded golden case gives the original back, byte for byte") {
  for (const fs::path& golden_case : cases()) {
    DYNAMIC_SECTION(golden_case.filename().string()) {
      const json golden = json::parse(read_file(golden_case / "golden.json"));
      const TempDir temp;
      shard(request_of(golden_case, golden, temp / "ranks", false));
      ConsolidateRequest request;
      request.source.path = temp / "ranks";
      request.output_directory = temp / "whole";
      const bool several_files = fs::exists(golden_case / "original/model.safetensors.index.json");
      if (several_files) request.target.options.set_number("max-shard-size", golden.at("case").at("shard_original"));
      consolidate(request);

      CHECK(describe_tensors(read_model(temp / "whole")) == golden.at("original"));
      const auto original = snapshot(golden_case / "original");
      auto ours = snapshot(temp / "whole");
      REQUIRE(ours.size() == original.size());
      for (const auto& [name, content] : original) {
        INFO(name);
        REQUIRE(ours.count(name) == 1);
        if (name.ends_with(".index.json"))
          CHECK(json::parse(ours[name]) == json::parse(content));
        else
          CHECK((ours[name] == content));
      }
    }
  }
}

TEST_CASE("A golden case of three files comes back in the same three files and index") {
  const fs::path golden_case = testdata("golden/optimum/llama-tp2-pp2");
  const TempDir temp;
  shard(shard_request(golden_case / "original", temp / "ranks", 2, 2));
  ConsolidateRequest request;
  request.source.path = temp / "ranks/tensor_parallel_shards";
  request.output_directory = temp / "whole";
  request.target.options.set_number("max-shard-size", 30000);
  CHECK(consolidate(request).files == 5);
  for (int i = 1; i <= 3; ++i) {
    const std::string name = "model-0000" + std::to_string(i) + "-of-00003.safetensors";
    CHECK((read_file(temp / "whole" / name) == read_file(golden_case / "original" / name)));
  }
  CHECK_FALSE(fs::exists(temp / "whole/model.safetensors"));
}

TEST_CASE("Consolidating into the default place puts the model beside the shards") {
  const fs::path golden_case = testdata("golden/optimum/qwen3-tp4-pp3-gqa");
  const TempDir temp;
  shard(shard_request(golden_case / "original", temp / "out", 4, 3));
  ConsolidateRequest request;
  request.source.path = temp / "out/tensor_parallel_shards/";
  consolidate(request);
  CHECK((read_file(temp / "out/model.safetensors") == read_file(golden_case / "original/model.safetensors")));
}

}  // namespace
}  // namespace reshard::test
