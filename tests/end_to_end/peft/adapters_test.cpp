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

/// Of a GPT-2 of one layer, whose linears are stored as (inputs, outputs): lora_A is (r, inputs) all the same.
struct TransposedLinear {
  const char* module;
  std::uint64_t inputs, outputs;
  bool row_parallel;
};

TEST_CASE("Adapters of linears that are stored transposed are split along the linear's own inputs or outputs") {
  const TransposedLinear linears[] = {{"attn.c_attn", 32, 96, false},
                                      {"attn.c_proj", 32, 32, true},
                                      {"mlp.c_fc", 32, 128, false},
                                      {"mlp.c_proj", 128, 32, true}};
  for (const auto& [module, inputs, outputs, row_parallel] : linears) {
    CAPTURE(module);
    const TempDir temp;
    write_file(
        temp / "model/config.json",
        R"({"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 16, "vocab_size": 64})");
    const std::string at = std::string("base_model.model.transformer.h.0.") + module;
    Random random(8);
    const TensorMap tensors{{at + ".lora_A.weight", random_tensor(random, DType::kF32, {4, inputs})},
                            {at + ".lora_B.weight", random_tensor(random, DType::kF32, {outputs, 4})}};
    write_safetensors(temp / "adapter/adapter_model.safetensors", tensors);
    write_file(
        temp / "adapter/adapter_config.json",
        json{{"peft_type", "LORA"}, {"r", 4}, {"lora_alpha", 8}, {"fan_in_fan_out", true}, {"target_modules", {module}}}
            .dump());
    ShardRequest request = shard_request(temp / "model", temp / "out", 2);
    request.target.format = Format::kPytorch;
    request.adapters = {temp / "adapter"};
    shard(request);
    const TensorMap rank =
        read_torch_tensors(temp / "out/adapter_default/adapter_shards/model/dp_rank_00_tp_rank_00_pp_rank_00.pt");
    CHECK(rank.at(at + ".lora_A.weight").shape == Dims{4, row_parallel ? inputs / 2 : inputs});
    CHECK(rank.at(at + ".lora_B.weight").shape == Dims{row_parallel ? outputs : outputs / 2, 4});
    if (module == std::string("attn.c_attn")) {  // queries, keys and values are each split
      const TensorData& whole = tensors.at(at + ".lora_B.weight");
      const std::size_t third = whole.bytes.size() / 3;
      std::string expected;
      for (std::size_t part = 0; part < 3; ++part) expected += whole.bytes.substr(part * third, third / 2);
      CHECK(rank.at(at + ".lora_B.weight").bytes == expected);
    }
    consolidate(consolidate_request(temp / "out", temp / "again"));
    CHECK((read_tensors(temp / "again/adapter_model.safetensors") == tensors));
  }
}

}  // namespace
}  // namespace reshard::test
