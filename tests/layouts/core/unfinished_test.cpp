// Downloads that did not finish, next to weights of every layout.

#include <string>
#include <tuple>

#include "reshard/io/memory_files.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/read_checkpoint.h"
#include "support/files.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

TEST_CASE("A weights file next to the control file of a download is refused, in every layout") {
  for (const auto& [name, folder, file] : std::vector<std::tuple<std::string, const char*, const char*>>{
           {"dcp/llama-plain", "original", "model.safetensors"},
           {"dcp/llama-plain", "sharded", "__0_0.distcp"},
           {"deepspeed/qwen3-zero3-r3", "sharded/global_step2", "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"},
           {"fsdp_ranks/llama-fsdp2-r3", "sharded", "model_world_size_3_rank_2.pt"},
           {"optimum/granite-tied-tp2", "sharded", "shards/model/dp_rank_00_tp_rank_01_pp_rank_00.pt"},
           {"converter/llama-tp4-pp2-xser", "model", "dp_rank_00_tp_rank_02_pp_rank_01.pt.tensors/tensor_9.pt"},
           {"nxdi/llama-tp4", ".", "weights/tp3_sharded_checkpoint.safetensors"},
           {"vllm/gemma2-tp2", "sharded", "model-rank-1-part-0.safetensors"},
           {"transformers_neuronx/llama-split", "split", "pytorch_model.bin/p3.model.layers.0.mlp.down_proj.weight"},
           {"lora/llama-tp2-two-adapters", "original", "test/adapter_model.safetensors"},
           {"lora/llama-tp2-two-adapters", "sharded",
            "adapter_test/adapter_shards/model/dp_rank_00_tp_rank_01_pp_rank_00.pt"}}) {
    const fs::path golden = testdata("golden") / name, directory = (golden / folder).lexically_normal();
    for (const char* ending : {".aria2", ".incomplete"}) {
      INFO(name << " " << file << ending);
      MemoryFiles files;
      load(files, golden);
      ReadContext context;
      if (files.exists(golden / "original/config.json")) context.config.path = golden / "original";
      files.write((directory / file).string() + ending, "");
      check_refused([&] { read_checkpoint(files, directory, context); },
                    {.path = directory / file,
                     .says = {"is unfinished", fs::path(file).filename().string() + ending},
                     .hint = "resume the download"});
    }
  }
}

TEST_CASE("The control file of another file is no reason to refuse the weights") {
  MemoryFiles files;
  files.write("m/model.safetensors", safetensors_bytes({{"a.weight", {DType::kU8, {2}, "ab"}}}));
  files.write("m/model-00003-of-00003.safetensors.aria2", "");
  files.write("m/model.safetensors.lock", "");
  CHECK(read_checkpoint(files, "m", {}).map.logical.size() == 1);
}

}  // namespace
}  // namespace reshard::test
