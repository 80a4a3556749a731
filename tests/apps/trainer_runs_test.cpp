// Directories of training runs as trainers leave them: what is read, and what is refused.

#include <nlohmann/json.hpp>

#include "support/checkpoints.h"
#include "support/files.h"
#include "support/program.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

const fs::path kFsdp = testdata("golden/fsdp_ranks/llama-fsdp2-r3");
const fs::path kDcp = testdata("golden/dcp/llama-torch2.2-fsdp2-r2");

/// An adapter of PEFT.
void write_adapter(const fs::path& directory) {
  write_safetensors(directory / "adapter_model.safetensors",
                    {{"base_model.model.model.norm.lora_A.weight", floats({1, 2}, {1, 2})},
                     {"base_model.model.model.norm.lora_B.weight", floats({2, 1}, {1, 2})}});
  write_file(directory / "adapter_config.json", R"({"peft_type": "LORA", "r": 1, "target_modules": ["norm"]})");
}

}  // namespace

TEST_CASE("A finished model at the top of a run is not passed over for a checkpoint of its training") {
  const TempDir dir;
  fs::copy(kDcp / "original", dir / "run", fs::copy_options::recursive);
  fs::copy(kDcp / "sharded", dir / "run/checkpoint-10", fs::copy_options::recursive);
  const std::string run = (dir / "run").string(), out = (dir / "out").string();
  check_fails({"consolidate", run, out}, 3,
              {"contains a finished model or adapter, and checkpoints of its training: checkpoint-10", "--tag"});
  run_well({"consolidate", run, out, "--tag", "checkpoint-10"});
  run_well({"convert", run, out, "--force"});  // the finished one
  CHECK((read_model(out) == read_model(kDcp / "original")));
}

TEST_CASE("A link to the folder of a step is read as the step") {
  const TempDir dir;
  fs::create_directories(dir / "run/global_step_20");
  fs::copy(kFsdp / "sharded", dir / "run/global_step_20/actor", fs::copy_options::recursive);
  fs::create_directory_symlink("global_step_20", dir / "run/LATEST");
  run_well({"consolidate", (dir / "run/LATEST").string(), (dir / "out").string()});
  run_well({"consolidate", (kFsdp / "sharded").string(), (dir / "same").string()});
  CHECK((read_model(dir / "out") == read_model(dir / "same")));
}

TEST_CASE("One rank's file of safetensors is refused, whatever its name") {
  const fs::path shards = testdata("golden/dcp/llama-torch2.9-hf-r3/sharded");
  const fs::path shard = shards / "shard-00001-model-00001-of-00002.safetensors";
  const TempDir dir;
  const std::string out = (dir / "out").string();
  for (const char* command : {"consolidate", "convert"})
    check_fails({command, shard.string(), out}, 3,
                {"contains one rank's part of each tensor", "give the directory that contains "});
  fs::copy(shard, dir / "model.safetensors");
  for (const std::string& path : {(dir / "model.safetensors").string(), (dir / "").string()})
    check_fails({"convert", path, out}, 3,
                {"model.safetensors: contains one rank's part of each tensor, as its metadata records"});
  run_well({"inspect", (dir / "model.safetensors").string()});
}

TEST_CASE("Files in formats that are not read are refused by what wrote them") {
  const TempDir dir;
  const std::string content(64, 'x');
  for (const char* name : {"model_state.pdparams", "model.nemo", "model.ckpt.index", "tf_model.h5",
                           "flax_model.msgpack", "model.onnx", "manifest.ocdbt", "weights.npz"}) {
    write_file(dir / name, content);
    check_fails({"convert", (dir / name).string(), (dir / "out").string()}, 4, {std::string(name) + ": is a file of "});
  }
}

TEST_CASE("A model that was trained in plain weights loses the quantization_config of its original") {
  const TempDir dir;
  fs::copy(kFsdp / "sharded", dir / "actor", fs::copy_options::recursive);
  const fs::path file = dir / "actor/huggingface/config.json";
  nlohmann::json config = nlohmann::json::parse(read_file(file));
  config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  write_file(file, config.dump());
  const std::string actor = (dir / "actor").string();
  CHECK_THAT(run_well({"consolidate", actor, (dir / "out").string()}).err,
             Says("the config.json that is written says how the weights are quantised: not at all"));
  CHECK(!nlohmann::json::parse(read_file(dir / "out/config.json")).contains("quantization_config"));
  run_well({"shard", actor, (dir / "served").string(), "--layout", "vllm", "--tp", "1"});
}

TEST_CASE("An adapter with a name, next to the state of its training, is the checkpoint") {
  const TempDir dir;
  fs::create_directories(dir / "checkpoint-5");
  fs::copy(kDcp / "sharded", dir / "checkpoint-5/pytorch_model_fsdp_0", fs::copy_options::recursive);
  write_adapter(dir / "checkpoint-5/sft");
  const std::string step = (dir / "checkpoint-5").string();
  CHECK_THAT(run_well({"convert", step, (dir / "out").string()}).err, Says("the training state next to the adapter"));
  CHECK(!fs::exists(dir / "out/model.safetensors"));
  check_fails({"consolidate", step, (dir / "other").string()}, 3, {"contains a finished adapter"});
}

TEST_CASE("A model of torch.distributed.checkpoint is read though an adapter is in its folder") {
  const TempDir dir;
  fs::copy(kDcp / "sharded", dir / "model", fs::copy_options::recursive);
  write_adapter(dir / "model");
  const ProgramResult result =
      run_well({"convert", (dir / "model").string(), (dir / "out").string(), "--config", (kDcp / "original").string()});
  CHECK_THAT(result.err, Says("there is also an adapter, which is left out; to read it, give ") &&
                             Says("adapter_model.safetensors"));
  CHECK((read_model(dir / "out") == read_model(kDcp / "original")));
}

}  // namespace reshard::test
