// The layout deepspeed, on what DeepSpeed's own code wrote: testdata/golden/deepspeed.

#include <nlohmann/json.hpp>

#include "reshard/engine/check/verify.h"
#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

fs::path zero_case(const std::string& name) {
  return testdata("golden/deepspeed") / name;
}

/// The folders of a case that are checkpoints.
std::vector<fs::path> checkpoints_of(const fs::path& golden_case) {
  std::vector<fs::path> found{golden_case / "sharded", golden_case / "sharded/global_step2"};
  if (fs::exists(golden_case / "universal")) found.push_back(golden_case / "universal");
  return found;
}

/// Weights and buffers as the model was trained.
json model_tensors(const json& golden) {
  json expected = golden.at("original");
  expected.update(golden.at("buffers"));
  return expected;
}

/// Master weights, and buffers as they are: zero_to_fp32.py loses digits of these.
json master_tensors(const json& golden) {
  json expected = golden.at("fp32");
  expected.update(golden.at("buffers"));
  for (const auto& [copy, source] : golden.at("copies").items()) expected.erase(copy);
  return expected;
}

ConvertRequest zero_request(const fs::path& source, const fs::path& config, const fs::path& output) {
  ConvertRequest request = convert_request(source, output);
  request.source.config = config;
  return request;
}

TEST_CASE("DeepSpeed's cases are complete") {
  CHECK(golden_cases("deepspeed").size() == 3);
}

TEST_CASE("Every case of DeepSpeed is converted into the weights that its model was trained with") {
  for (const fs::path& golden_case : golden_cases("deepspeed"))
    for (const fs::path& source : checkpoints_of(golden_case))
      for (const bool with_config : {true, false}) {
        DYNAMIC_SECTION(fs::relative(source, testdata("golden")).string() << " " << with_config) {
          const TempDir temp;
          convert(zero_request(source, with_config ? golden_case / "original" : "", temp / "out"));
          CHECK(describe_tensors(read_model(temp / "out")) == model_tensors(golden_of(golden_case)));
          CHECK(fs::exists(temp / "out/config.json") == with_config);
        }
      }
}

TEST_CASE("Every case of DeepSpeed is converted into its master weights") {
  for (const fs::path& golden_case : golden_cases("deepspeed"))
    for (const fs::path& source : checkpoints_of(golden_case)) {
      DYNAMIC_SECTION(fs::relative(source, testdata("golden")).string()) {
        const TempDir temp;
        ConvertRequest request = zero_request(source, golden_case / "original", temp / "out");
        request.source.options.set("weights", "master");
        convert(request);
        CHECK(describe_tensors(read_model(temp / "out")) == master_tensors(golden_of(golden_case)));
      }
    }
}

TEST_CASE("A checkpoint of DeepSpeed is consolidated, and its master weights are cast to its model's dtype") {
  const fs::path golden_case = zero_case("qwen3-zero3-r3");
  const TempDir temp;
  ConsolidateRequest request;
  request.source.path = golden_case / "sharded";
  request.source.config = golden_case / "original";
  request.output_directory = temp / "out";
  const auto job = plan_consolidate(local_storage(), request);
  const std::string notes = json(job->notes).dump();
  CHECK_THAT(notes, Says("22 tensors are cast to BF16, which the model was trained in"));
  CHECK_THAT(notes, Says("18 tensors of the optimizer's state (181 kB) are left out"));
  CHECK_THAT(notes, Says("lm_head.weight is model.embed_tokens.weight under a second name"));
  CHECK_THAT(notes, Says("global_step2 is taken, which the file \\\"latest\\\" names"));
  consolidate(request);
  CHECK(describe_tensors(read_model(temp / "out")) == golden_of(golden_case).at("original"));
}

TEST_CASE("A dtype that is asked for goes before the one that a model of ZeRO 3 was trained in") {
  const fs::path golden_case = zero_case("qwen3-zero3-r3");
  const TempDir temp;
  ConvertRequest request = zero_request(golden_case / "sharded", golden_case / "original", temp / "out");
  request.dtype = DType::kF32;
  convert(request);
  const json made = describe_tensors(read_model(temp / "out"));
  const json golden = golden_of(golden_case);
  for (const auto& [name, fragments] : golden.at("fragments").items())
    CHECK(made.at(name) == golden.at("fp32").at(name));
  CHECK(made.size() == golden.at("original").size());
}

TEST_CASE("Master weights are verified against the weights that are made of them, and either side may have these") {
  const fs::path golden_case = zero_case("qwen3-zero3-r3");
  const TempDir temp;
  convert(zero_request(golden_case / "sharded", golden_case / "original", temp / "out"));
  const Checkpoint source = read_checkpoint(local_storage(), golden_case / "sharded", {});
  const auto found = [&](bool swapped) {
    const Checkpoint made = read_checkpoint(local_storage(), temp / "out", {});
    return swapped ? verify(made.map, source.map, {}, unsynced()) : verify(source.map, made.map, {}, unsynced());
  };
  for (const bool swapped : {false, true}) {
    const Verification same = found(swapped);
    CHECK(same.same());
    CHECK(same.compared_tensors == 24);
  }
  const Container container = read_container(temp / "out/model.safetensors", Format::kSafetensors);
  std::string bytes = read_file(temp / "out/model.safetensors");
  bytes[container.tensors.back().offset_bytes + 2 * 33] ^= 1;
  write_file(temp / "out/model.safetensors", bytes);
  for (const bool swapped : {false, true}) {
    const Verification other = found(swapped);
    REQUIRE(other.different.size() == 1);
    CHECK(other.different[0].name == container.tensors.back().name);
    CHECK(other.different[0].differing == 1);
    CHECK(other.different[0].first.back() == 33);
  }
}

TEST_CASE("A checkpoint of ZeRO 3 is sharded in the dtype that its model was trained in") {
  const fs::path golden_case = zero_case("qwen3-zero3-r3");
  const TempDir temp;
  ShardRequest request = shard_request(golden_case / "sharded", temp / "ranks", 1, 2);
  request.source.config = golden_case / "original";
  shard(request);
  CHECK(describe_tensors(consolidated(temp / "ranks", temp / "whole")) == golden_of(golden_case).at("original"));
}

TEST_CASE("A checkpoint of DeepSpeed becomes shards of another layout") {
  const fs::path golden_case = zero_case("qwen3-zero2-r2");
  const TempDir temp;
  ConvertRequest request = zero_request(golden_case / "sharded", golden_case / "original", temp / "ranks");
  request.target.layout = layout("optimum");
  request.target.tp = 1;
  request.target.pp = 2;
  request.names.drop.emplace_back("drop", "^(scale|seen)$");
  convert(request);
  CHECK(describe_tensors(consolidated(temp / "ranks", temp / "whole")) == golden_of(golden_case).at("original"));
}

}  // namespace
}  // namespace reshard::test
