// Directories of training runs as trainers leave them: what is read, and what is refused.

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "support/architectures.h"
#include "support/checkpoints.h"
#include "support/files.h"
#include "support/program.h"
#include "support/random.h"
#include "support/temp_dir.h"
#include "support/torch_files.h"

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

/// Two steps of a run that trains an adapter, with the tokenizer and other files that Transformers' Trainer saves.
void write_adapter_run(const fs::path& run) {
  for (const char* step : {"checkpoint-5", "checkpoint-10"}) {
    write_adapter(run / step);
    for (const char* name : {"tokenizer.json", "chat_template.jinja", "README.md", "trainer_state.json"})
      write_file(run / step / name, step);
    write_file(run / step / "rng_state.log", step);
  }
}

/// A file of a whole state dict, as Accelerate saves it with FULL_STATE_DICT, with a config.json next to it.
fs::path write_full_state_dict(const fs::path& directory, const TensorMap& tensors, const nlohmann::json& config) {
  write_file(directory / "config.json", config.dump());
  write_torch(directory / "pytorch_model_fsdp.bin", tensors);
  return directory / "pytorch_model_fsdp.bin";
}

/// The tensors of a model in which PEFT has wrapped a linear.
TensorMap with_adapter(const TensorMap& tensors, const std::string& linear) {
  TensorMap all;
  for (const auto& [name, data] : tensors)
    all["base_model.model." + (name == linear + ".weight" ? linear + ".base_layer.weight" : name)] = data;
  all["base_model.model." + linear + ".lora_A.default.weight"] = floats({1, 2}, {1, 2});
  all["base_model.model." + linear + ".lora_B.default.weight"] = floats({2, 1}, {1, 2});
  return all;
}

}  // namespace

TEST_CASE("A finished model at the top of a run is not passed over for a checkpoint of its training") {
  const TempDir dir;
  fs::copy(kDcp / "original", dir / "run", fs::copy_options::recursive);
  fs::copy(kDcp / "sharded", dir / "run/checkpoint-10", fs::copy_options::recursive);
  const std::string run = (dir / "run").string(), out = (dir / "out").string();
  check_fails({"consolidate", run, out}, 3,
              {"contains a finished model, and checkpoints of its training: checkpoint-10", "--tag"});
  run_well({"consolidate", run, out, "--tag", "checkpoint-10"});
  run_well({"convert", run, out, "--force"});  // the finished one
  CHECK((read_model(out) == read_model(kDcp / "original")));
}

TEST_CASE("An error names the finished adapter next to the tag folder of its training") {
  const TempDir dir;
  write_adapter(dir / "checkpoint-5");
  fs::copy(kDcp / "sharded", dir / "checkpoint-5/global_step10", fs::copy_options::recursive);
  check_fails(
      {"consolidate", (dir / "checkpoint-5").string(), (dir / "out").string()}, 3,
      {"contains a finished adapter, adapter_model.safetensors, and checkpoints of its training: global_step10"});
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

TEST_CASE("The newest adapter of a run is read, with its tokenizer") {
  const TempDir dir;
  write_adapter_run(dir / "run");
  const std::string run = (dir / "run").string(), out = (dir / "out").string();
  CHECK_THAT(run_well({"convert", run, out}).err,
             Says("left out, as it is not known to belong to the model: rng_state.log"));
  for (const char* name : {"tokenizer.json", "chat_template.jinja", "README.md", "trainer_state.json"})
    CHECK(read_file(dir / "out" / name) == "checkpoint-10");
  CHECK(!fs::exists(dir / "out/rng_state.log"));
  run_well({"convert", run, (dir / "bare").string(), "--companions", "none"});
  CHECK(fs::exists(dir / "bare/adapter_config.json"));
  CHECK(!fs::exists(dir / "bare/tokenizer.json"));
}

TEST_CASE("An adapter that is not merged is refused where a config.json says that the file has a model") {
  const TempDir dir;
  const TensorMap tensors = read_model(kDcp / "original");
  const std::string linear = "model.layers.0.self_attn.q_proj";
  nlohmann::json config = nlohmann::json::parse(read_file(kDcp / "original/config.json"));
  TensorMap all = with_adapter(tensors, linear), alone = all;
  std::erase_if(alone, [](const auto& one) { return one.first.find("lora_") == std::string::npos; });
  const std::string out = (dir / "out").string();
  for (const bool is_quantized : {false, true}) {
    CAPTURE(is_quantized);
    if (is_quantized) config["quantization_config"] = {{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}};
    for (const char* command : {"convert", "consolidate"}) {
      const std::string file = write_full_state_dict(dir / "all", all, config).string();
      check_fails({command, file, out}, 4, {linear, "a LoRA adapter that is not merged", "merge_and_unload"});
      const std::string lone = write_full_state_dict(dir / "alone", alone, config).string();
      check_fails({command, lone, out}, 4,
                  {"lora_A.default.weight", "a LoRA adapter that is not merged", "the base model's weights are missing",
                   "save_pretrained"});
    }
  }
  fs::remove(dir / "all/config.json");
  const std::string file = (dir / "all/pytorch_model_fsdp.bin").string();
  CHECK_THAT(run_well({"convert", file, out}).err,
             Says("a LoRA adapter that is not merged") && Says("merge_and_unload"));
}

TEST_CASE("A vocabulary that grew in training is read, and config.json follows") {
  const TempDir dir;
  TensorMap tensors = read_model(kDcp / "original");
  const nlohmann::json config = nlohmann::json::parse(read_file(kDcp / "original/config.json"));
  const std::uint64_t tokens = config["vocab_size"].get<std::uint64_t>() + 3;
  Random random(3);
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
    TensorData& data = tensors.at(name);
    data = random_tensor(random, data.dtype, {tokens, data.shape[1]});
  }
  const std::string file = write_full_state_dict(dir / "run", tensors, config).string();
  const auto says = Says(fmt::format("has {} rows, but vocab_size in config.json is {}", tokens, tokens - 3));
  const std::string changed = fmt::format("the config.json that is written says \"vocab_size\": {}", tokens);
  for (const char* command : {"convert", "consolidate"}) {
    CHECK_THAT(run_well({command, file, (dir / command).string()}).err, says && Says(changed));
    CHECK((read_model(dir / command) == tensors));
  }
  const std::string whole = (dir / "convert").string(), ranks = (dir / "ranks").string();
  write_file(dir / "convert/config.json", config.dump());
  CHECK_THAT(run_well({"shard", whole, ranks, "--tp", "1"}).err, says && Says(changed));
  CHECK(nlohmann::json::parse(read_file(dir / "ranks/config.json"))["vocab_size"] == tokens);
  CHECK_THAT(run_well({"inspect", whole}).err, says);
  // Config.json that is in the output directory is not changed.
  check_fails({"convert", file, whole, "--config", whole, "--force"}, 2,
              {"config.json: is already in the output directory, but would have to say \"vocab_size\": "});
  nlohmann::json larger = config;
  larger["vocab_size"] = tokens + 1;
  write_file(dir / "convert/config.json", larger.dump());
  check_fails({"shard", whole, ranks, "--tp", "1", "--force"}, 3, {"has the shape", "config.json asks for"});
}

TEST_CASE("A prefix that only this model has is taken off if config.json says which model it is") {
  const TempDir dir;
  const TensorMap tensors = read_model(kDcp / "original");
  const nlohmann::json config = nlohmann::json::parse(read_file(kDcp / "original/config.json"));
  for (const char* prefix : {"net.", "llm.", "student.model."}) {
    CAPTURE(prefix);
    TensorMap stored;
    for (const auto& [name, data] : tensors) stored[prefix + name] = data;
    const std::string out = (dir / prefix).string();
    run_well({"convert", write_full_state_dict(dir / "run", stored, config).string(), out});
    CHECK((read_model(out) == tensors));
    stored["teacher.norm.weight"] = floats({2}, {1, 2});
    if (std::string_view(prefix) == "llm.") continue;  // it may be the part of a larger model
    run_well({"convert", write_full_state_dict(dir / "run", stored, config).string(), out, "--force"});
    TensorMap expected = tensors;
    expected["teacher.norm.weight"] = floats({2}, {1, 2});
    CHECK((read_model(out) == expected));
  }
  TensorMap two;
  for (const auto& [name, data] : tensors) two["student." + name] = two["teacher." + name] = data;
  const std::string out = (dir / "two").string();
  check_fails({"consolidate", write_full_state_dict(dir / "run", two, config).string(), out}, 3,
              {"student.lm_head.weight", "not explained by config.json"});
}

TEST_CASE("Only the size of the vocabulary that the model has is changed in config.json") {
  const TempDir dir;
  const TensorMap tensors = write_architecture(architecture("qwen3_vl_own_head"), dir / "model");
  nlohmann::json config = nlohmann::json::parse(read_file(dir / "model/config.json"));
  const std::string embedding = "model.language_model.embed_tokens.weight";
  REQUIRE(tensors.count(embedding) == 1);
  const std::uint64_t tokens = tensors.at(embedding).shape[0];
  REQUIRE(config["text_config"]["vocab_size"] == tokens);
  config["text_config"]["vocab_size"] = tokens - 2;
  config["vocab_size"] = 7;  // of something else
  write_file(dir / "model/config.json", config.dump());
  const std::string model = (dir / "model").string();
  CHECK_THAT(run_well({"convert", model, (dir / "out").string()}).err, Says(embedding) || Says("lm_head.weight has"));
  const nlohmann::json written = nlohmann::json::parse(read_file(dir / "out/config.json"));
  CHECK(written["text_config"]["vocab_size"] == tokens);
  CHECK(written["vocab_size"] == 7);
}

TEST_CASE("The tokenizer and README of each adapter are copied, and the tokenizer above a step") {
  const TempDir dir;
  for (const char* name : {"checkpoint-5", "checkpoint-5/sft"}) {
    write_adapter(dir / name);
    write_file(dir / name / "README.md", name);
  }
  write_file(dir / "tokenizer.json", "of the run");
  const std::string step = (dir / "checkpoint-5").string(), out = (dir / "out").string();
  CHECK_THAT(run_well({"convert", step, out}).err, Says("used the tokenizer of ") && Says(", above the checkpoint"));
  CHECK(read_file(dir / "out/tokenizer.json") == "of the run");
  CHECK(read_file(dir / "out/README.md") == "checkpoint-5");
  CHECK(read_file(dir / "out/sft/README.md") == "checkpoint-5/sft");
}

TEST_CASE("The processor of the original model stays next to the tokenizer of a run") {
  const TempDir dir;
  fs::copy(kDcp / "original", dir / "base", fs::copy_options::recursive);
  for (const char* name :
       {"tokenizer.json", "chat_template.jinja", "generation_config.json", "preprocessor_config.json"})
    write_file(dir / "base" / name, "base");
  write_torch(dir / "checkpoint-10/pytorch_model_fsdp.bin", read_model(kDcp / "original"));
  const std::string base = (dir / "base").string(), step = (dir / "checkpoint-10").string();
  write_file(dir / "checkpoint-10/tokenizer_config.json", "tuned");  // without a vocabulary
  run_well({"convert", step, (dir / "a").string(), "--config", base});
  CHECK(read_file(dir / "a/tokenizer.json") == "base");
  write_file(dir / "tokenizer.json", "tuned");  // above the step
  CHECK_THAT(run_well({"convert", step, (dir / "b").string(), "--config", base}).err,
             Says("used the tokenizer of ") && Says(", and left out the one in " + base));
  CHECK(read_file(dir / "b/tokenizer.json") == "tuned");
  CHECK(!fs::exists(dir / "b/chat_template.jinja"));
  for (const char* name : {"generation_config.json", "preprocessor_config.json"})
    CHECK(read_file(dir / "b" / name) == "base");
}

TEST_CASE("A folder of files, one for each step, names them") {
  const TempDir dir;
  for (const char* name : {"epoch=0-step=10.ckpt", "epoch=1-step=20.ckpt"})
    write_torch(dir / "run/checkpoints" / name, {{"weight", floats({2}, {1, 2})}});
  for (const char* command : {"convert", "consolidate"})
    check_fails({command, (dir / "run").string(), (dir / "out").string()}, 3,
                {"several weights files, give one of them: checkpoints/epoch=0-step=10.ckpt, "
                 "checkpoints/epoch=1-step=20.ckpt"});
}

TEST_CASE("A step of verl that its run names and that does not exist is an error") {
  const TempDir dir;
  fs::create_directories(dir / "run/global_step_10");
  fs::copy(kFsdp / "sharded", dir / "run/global_step_10/actor", fs::copy_options::recursive);
  write_file(dir / "run/latest_checkpointed_iteration.txt", "20");
  const std::string run = (dir / "run").string(), out = (dir / "out").string();
  check_fails(
      {"consolidate", run, out}, 3,
      {"latest_checkpointed_iteration.txt: names the checkpoint global_step_20, which is not next to it", "--tag"});
  run_well({"consolidate", run, out, "--tag", "global_step_10"});
}

TEST_CASE("The tokenizer of a run takes precedence over the original model's, also from above its step") {
  const TempDir dir;
  fs::copy(kDcp / "original", dir / "base", fs::copy_options::recursive);
  write_file(dir / "base/tokenizer.json", "base");
  write_torch(dir / "checkpoint-10/pytorch_model_fsdp.bin", read_model(kDcp / "original"));
  write_file(dir / "checkpoint-10/tokenizer.json", "tuned");
  const std::string base = (dir / "base").string();
  run_well({"convert", (dir / "checkpoint-10").string(), (dir / "a").string(), "--config", base});
  CHECK(read_file(dir / "a/tokenizer.json") == "tuned");
  fs::create_directories(dir / "run");
  fs::copy(kDcp / "sharded", dir / "run/step_5", fs::copy_options::recursive);
  write_file(dir / "run/tokenizer.json", "tuned");
  CHECK_THAT(run_well({"convert", (dir / "run/step_5").string(), (dir / "b").string(), "--config", base}).err,
             Says("/run, and left out the one in " + base));
  CHECK(read_file(dir / "b/tokenizer.json") == "tuned");
}

}  // namespace reshard::test
