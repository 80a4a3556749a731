#include "reshard/specs/stages/parallel_layers.h"

#include <algorithm>

#include "reshard/specs/stages/stage_json.h"
#include "support/catch.h"
#include "support/files.h"
#include "support/local_files.h"

namespace reshard::test {
namespace {

std::vector<ParallelParameter> sorted(std::vector<ParallelParameter> parameters) {
  std::sort(parameters.begin(), parameters.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return parameters;
}

TEST_CASE("A Llama of parallel layers has the parameters that the reference's metadata lists") {
  for (const bool fused : {false, true}) {
    CAPTURE(fused);
    const StageMetadata reference =
        read_metadata(testdata(fused ? "golden/optimum/llama-tp8-gqa-fused-xser" : "golden/optimum/llama-tp8-gqa") /
                      "sharded/shards/mp_metadata_pp_rank_0.json");
    std::vector<ParallelLayer> layers{ParallelEmbedding{"model.embed_tokens"}, ReplicatedLayer{"model.norm"},
                                      ColumnParallelLinear{"lm_head"}};
    GQAQKVColumnParallelLinearSpec qkv;
    qkv.gqa_qkv_projection_name = "qkv_proj";
    qkv.fuse_qkv = fused;
    std::size_t count = 0;
    for (const ModuleSpecs& module : reference.modules) {
      if (!module.module_fully_qualified_name.ends_with(".self_attn")) continue;
      const std::string layer = "model.layers." + std::to_string(count++);
      layers.insert(
          layers.end(),
          {GQAQKVColumnParallelLinear{layer + ".self_attn", qkv}, RowParallelLinear{layer + ".self_attn.o_proj"},
           ColumnParallelLinear{layer + ".mlp.gate_up_proj", false, 2}, RowParallelLinear{layer + ".mlp.down_proj"},
           ReplicatedLayer{layer + ".input_layernorm"}, ReplicatedLayer{layer + ".post_attention_layernorm"}});
    }
    REQUIRE(count > 0);
    CHECK(sorted(parallel_parameters(layers, 8)) == sorted(reference.parameters));
  }
}

TEST_CASE("Biases of parallel layers are split as the outputs are, and whole beside split inputs") {
  GQAQKVColumnParallelLinearSpec qkv;
  qkv.gqa_qkv_projection_name = "qkv";
  qkv.bias = true;
  const std::vector<ParallelParameter> expected{
      {"up.weight", true, 0, 2, 4},      {"up.bias", true, 0, 2, 4},        {"down.weight", true, 1, 1, 4},
      {"down.bias", false, 0, 1, 1},     {"a.qkv.weight_q", true, 0, 1, 4}, {"a.qkv.weight_k", true, 0, 1, 4},
      {"a.qkv.weight_v", true, 0, 1, 4}, {"a.qkv.bias_q", true, 0, 1, 4},   {"a.qkv.bias_k", true, 0, 1, 4},
      {"a.qkv.bias_v", true, 0, 1, 4},   {"across.weight", true, 1, 1, 4},  {"norm.weight", false, 0, 1, 1},
      {"norm.bias", false, 0, 1, 1}};
  CHECK(parallel_parameters(
            {ColumnParallelLinear{"up", true, 2}, RowParallelLinear{"down", true}, GQAQKVColumnParallelLinear{"a", qkv},
             ParallelEmbedding{"across", true}, ReplicatedLayer{"norm", true}},
            4) == expected);
}

}  // namespace
}  // namespace reshard::test
