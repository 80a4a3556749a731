// The mean of several tensors that becomes one: lora_A of fused linears.

#include <cstring>
#include <nlohmann/json.hpp>

#include "reshard/engine/job_run.h"
#include "support/catch.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/temp_dir.h"
#include "support/torch_files.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kRank = 4;

std::string layer_prefix(int layer) {
  return "base_model.model.model.layers." + std::to_string(layer) + ".mlp.";
}

/// An adapter of two layers. Each lora_A is several blocks of negative zeros; in layer 1 those of up_proj end in a 3.
struct Fused {
  Fused() {
    TinyModel model;
    model.hidden = 8192;
    write_file(temp / "model/config.json", model.config().dump());
    for (const int layer : {0, 1})
      for (const char* linear : {"gate_proj", "up_proj"}) {
        std::vector<float> a(kRank * model.hidden, -0.0f);
        if (layer == 1 && linear == std::string("up_proj")) a.back() = 3;
        tensors[layer_prefix(layer) + linear + ".lora_A.weight"] = floats({kRank, model.hidden}, a);
        tensors[layer_prefix(layer) + linear + ".lora_B.weight"] =
            floats({model.intermediate, kRank}, std::vector<float>(model.intermediate * kRank, 1));
      }
    write_safetensors(temp / "peft/adapter_model.safetensors", tensors);
    write_file(temp / "peft/adapter_config.json", R"({"peft_type": "LORA", "r": 4})");
  }
  std::unique_ptr<Job> plan(const fs::path& output) const {
    Request request = shard_request(temp / "model", output, 2);
    request.target.layout = layout("optimum");
    request.target.format = usual_format(*request.target.layout);
    request.adapters = {temp / "peft"};
    return plan_shard(request);
  }
  TempDir temp;
  TensorMap tensors;
};

TEST_CASE("Elements that are equal are their own mean to the byte, and others get their mean") {
  const Fused fused;
  const auto job = fused.plan(fused.temp / "out");
  RunOptions options = unsynced();
  options.threads = GENERATE(1u, 4u);
  const RunResult result = execute(*job, options);
  CHECK(result.inexact == std::vector{layer_prefix(1) + "gate_up_proj.lora_A.weight"});
  const TensorMap rank =
      read_torch_tensors(fused.temp / "out/adapter_default/adapter_shards/model/dp_rank_00_tp_rank_01_pp_rank_00.pt");
  CHECK(rank.at(layer_prefix(0) + "gate_up_proj.lora_A.weight") ==
        fused.tensors.at(layer_prefix(0) + "gate_proj.lora_A.weight"));
  std::vector<float> mean(kRank * 8192, -0.0f);
  mean.back() = 1.5f;
  CHECK(rank.at(layer_prefix(1) + "gate_up_proj.lora_A.weight") == floats({kRank, 8192}, mean));
}

TEST_CASE("Shares of a program agree on which means are of tensors that differ") {
  const Fused fused;
  const auto whole = fused.plan(fused.temp / "whole");
  execute(*whole, unsynced());
  const std::uint32_t count = GENERATE(2u, 3u, 7u);
  const auto job = fused.plan(fused.temp / "parts");
  JobRun run(*job, unsynced());
  run.prepare();
  ShareReport merged;
  for (std::uint32_t index = count; index-- > 0;) {
    ShareReport report = run.run({index, count});
    run.finish(report);
    merge(merged, std::move(report));
  }
  const RunResult result = run.publish(std::move(merged));
  CHECK(result.inexact == std::vector{layer_prefix(1) + "gate_up_proj.lora_A.weight"});
  CHECK((snapshot(fused.temp / "parts") == snapshot(fused.temp / "whole")));
}

}  // namespace
}  // namespace reshard::test
