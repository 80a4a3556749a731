// LoRA adapters that the reference's own code has sharded, held against ours: testdata/golden/lora.

#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/golden.h"
#include "support/layouts.h"
#include "support/models.h"
#include "support/temp_dir.h"
#include "support/torch_files.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::vector<fs::path> cases() {
  return golden_cases("lora");
}

fs::path folder_of(const std::string& adapter) {
  return adapter == "default" ? fs::path() : fs::path(adapter);
}

ConsolidateRequest consolidate_request(const fs::path& checkpoint, const fs::path& output,
                                       Format format = Format::kSafetensors) {
  ConsolidateRequest request;
  request.source.path = checkpoint;
  request.output_directory = output;
  request.target.format = format;
  return request;
}

TEST_CASE("Every golden adapter is consolidated into the tensors that the reference makes of it, in both formats") {
  REQUIRE(cases().size() == 3);
  for (const fs::path& golden_case : cases())
    for (const Format format : {Format::kSafetensors, Format::kPytorch}) {
      DYNAMIC_SECTION(golden_case.filename().string() << ", " << name(format)) {
        const json golden = golden_of(golden_case);
        const TempDir temp;
        consolidate(consolidate_request(golden_case / "sharded", temp / "out", format));
        for (const auto& [adapter, tensors] : golden.at("consolidated").items()) {
          INFO(adapter);
          const fs::path folder = temp / "out" / folder_of(adapter);
          const TensorMap ours = format == Format::kSafetensors ? read_tensors(folder / "adapter_model.safetensors")
                                                                : read_torch_tensors(folder / "adapter_model.bin");
          CHECK(describe_tensors(ours) == tensors);
          CHECK(read_file(folder / "adapter_config.json") ==
                read_file(golden_case / "original" / folder_of(adapter) / "adapter_config.json"));
        }
        CHECK(snapshot(temp / "out").size() == golden.at("consolidated").size() * 3 - 1);
      }
    }
}

/// A golden case's base model, which its own files do not describe.
void write_base_config(const fs::path& directory, const std::string& config_name) {
  TinyModel model;
  model.hidden = 32;
  model.intermediate = 48;
  model.layers = config_name == "mha.json" ? 2 : 4;
  model.heads = 8;
  model.kv_heads = config_name == "mha.json" ? 8 : 4;
  model.head_dim = 4;
  model.vocab = 64;
  write_file(directory / "config.json", model.config().dump());
}

ShardRequest shard_request_of(const fs::path& golden_case, const TempDir& temp, Format format) {
  const json options = golden_of(golden_case).at("case");
  write_base_config(temp / "model", options.at("config"));
  ShardRequest request = shard_request(temp / "model", temp / "out", options.at("tp"), options.at("pp"));
  request.target.options.set_flag("fuse-qkv", options.at("fuse_qkv"));
  request.target.layout = layout("optimum"), request.target.format = format;
  request.adapters = {golden_case / "original"};
  return request;
}

TEST_CASE("Every golden adapter is sharded into the tensors and metadata that the reference wrote, plain and as xser") {
  for (const fs::path& golden_case : cases())
    for (const Format format : {Format::kPytorch, Format::kXser}) {
      DYNAMIC_SECTION(golden_case.filename().string() << ", " << name(format)) {
        const json golden = golden_of(golden_case);
        const TempDir temp;
        shard(shard_request_of(golden_case, temp, format));
        for (const auto& [file, tensors] : golden.at("files").items()) {
          INFO(file);
          CHECK(describe_tensors(read_torch_tensors(temp / "out" / file)) == tensors);
          CHECK(fs::exists(temp / "out" / (file + ".tensors")) == (format == Format::kXser));
        }
        for (const auto& entry : fs::recursive_directory_iterator(golden_case / "sharded")) {
          if (entry.path().extension() != ".json") continue;
          const fs::path relative = fs::relative(entry.path(), golden_case / "sharded");
          INFO(relative);
          CHECK(json::parse(read_file(temp / "out" / relative)) == json::parse(read_file(entry.path())));
        }
        for (const auto& [adapter, tensors] : golden.at("consolidated").items()) {
          const fs::path folder = temp / "out" / ("adapter_" + adapter);
          for (const char* marker : {"checkpoint", "done"}) CHECK(read_file(folder / "adapter_shards" / marker) == "1");
          CHECK(read_file(folder / "adapter_config.json") ==
                read_file(golden_case / "original" / folder_of(adapter) / "adapter_config.json"));
        }
        consolidate(consolidate_request(temp / "out", temp / "again"));
        for (const auto& [adapter, tensors] : golden.at("consolidated").items())
          CHECK(describe_tensors(read_tensors(temp / "again" / folder_of(adapter) / "adapter_model.safetensors")) ==
                tensors);
      }
    }
}

TEST_CASE("Golden adapters that are sharded exactly come back to the byte, with their config") {
  for (const fs::path& golden_case : cases()) {
    DYNAMIC_SECTION(golden_case.filename().string()) {
      const TempDir temp;
      ShardRequest request = shard_request_of(golden_case, temp, Format::kPytorch);
      request.lora_fuse = LoraFuse::kExact;
      shard(request);
      consolidate(consolidate_request(temp / "out", temp / "again"));
      CHECK((snapshot(temp / "again") == snapshot(golden_case / "original")));
    }
  }
}

TEST_CASE("One adapter's folder, or its shards, is consolidated into the output directory itself") {
  const fs::path golden_case = testdata("golden/lora/llama-tp2-two-adapters");
  const json expected = golden_of(golden_case).at("consolidated").at("test");
  for (const char* given : {"adapter_test", "adapter_test/", "adapter_test/adapter_shards"}) {
    DYNAMIC_SECTION(given) {
      const TempDir temp;
      consolidate(consolidate_request(golden_case / "sharded" / given, temp / "out"));
      CHECK(describe_tensors(read_tensors(temp / "out/adapter_model.safetensors")) == expected);
      CHECK(snapshot(temp / "out").size() == 2);
    }
  }
}

TEST_CASE("A consolidated adapter's safetensors file says that it is of torch") {
  const TempDir temp;
  consolidate(consolidate_request(testdata("golden/lora/mha-tp4-pp2-fused/sharded"), temp / "out"));
  CHECK_THAT(read_file(temp / "out/adapter_model.safetensors").substr(8, 60),
             Catch::Matchers::StartsWith(R"({"__metadata__":{"format":"pt"})"));
}

}  // namespace
}  // namespace reshard::test
