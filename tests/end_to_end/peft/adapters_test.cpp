// LoRA adapters of models whose linears are stored transposed, and the file that PEFT reads.

#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/requests.h"
#include "support/temp_dir.h"
#include "support/torch_files.h"

namespace reshard::test {
namespace {

using nlohmann::json;

TEST_CASE("A consolidated adapter's safetensors file says that it is of torch") {
  const TempDir temp;
  consolidate(consolidate_request(testdata("golden/lora/mha-tp4-pp2-fused/sharded"), temp / "out"));
  CHECK_THAT(read_file(temp / "out/adapter_model.safetensors").substr(8, 60),
             Catch::Matchers::StartsWith(R"({"__metadata__":{"format":"pt"})"));
}

TEST_CASE("Adapters of linears that are stored transposed are split along the linear's own inputs or outputs") {
  // Of a GPT-2 of one layer, whose linears are stored as (inputs, outputs): lora_A is (r, inputs) all the same.
  struct Linear {
    const char* module;
    std::uint64_t inputs, outputs;
    bool row_parallel;
  };
  for (const auto& [module, inputs, outputs, row_parallel] : {Linear{"attn.c_attn", 32, 96, false},
                                                              {"attn.c_proj", 32, 32, true},
                                                              {"mlp.c_fc", 32, 128, false},
                                                              {"mlp.c_proj", 128, 32, true}}) {
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
    Request request = shard_request(temp / "model", temp / "out", {.format = Format::kPytorch, .tp = 2});
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
