// What users give is often one level away from what is read, or has another program's names: the config.json of another
// directory, NxD Inference's neuron_config.json, folders of runs and exports, a single file, diffusers' index.

#include <nlohmann/json.hpp>

#include "reshard/layouts/core/checkpoint.h"
#include "support/checkpoints.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// The error of consolidating `source`; nothing is written.
Error folder_refusal(const Input& input, const fs::path& source) {
  return check_refused([&] { consolidated(source, input / "none", RequestFields()); }, {.unwritten = input / "none"});
}

TEST_CASE("A model without config.json is sharded by the one of --config, which goes along") {
  const Input input;
  fs::rename(input / "model/config.json", input / "config.json");
  RequestFields to{.layout = "nxd", .tp = 2};
  check_refused([&] { shard(input / "model", input / "out", to); }, {.hint = "`config`"});
  to.config = input / "config.json";
  shard(input / "model", input / "out", to);
  CHECK((read_file(input / "out/config.json") == read_file(input / "config.json")));
  CHECK((consolidated(input / "out", input / "whole") == input.tensors));
}

TEST_CASE("A single file is a model that is sharded, converted and consolidated") {
  for (const std::string name : {"full.pt", "full.pth", "full.bin"}) {
    DYNAMIC_SECTION(name) {
      const Input input;
      convert(input / "model", input / "torch", {.layout = "hf", .format = Format::kPytorch});
      const fs::path file = input / "full" / name;
      fs::create_directories(input / "full");
      fs::rename(input / "torch/pytorch_model.bin", file);
      shard(file, input / "out", {.layout = "nxd", .tp = 2, .config = input / "model"});
      CHECK((consolidated(input / "out", input / "whole") == input.tensors));
      CHECK((consolidated(file, input / "one") == input.tensors));
      Request nowhere;
      nowhere.source.path = file;
      check_refused([&] { plan_consolidate(nowhere); }, {.kind = ErrorKind::kUsage});
      // The folder with it names it.
      const Error folder = check_refused([&] { read_checkpoint(input / "full", {ConfigUse::kStrict}); },
                                         {.hint = name + " in it is a weights file: give that file"});
      CHECK(folder_refusal(input, input / "full").hint() == folder.hint());
    }
  }
}

TEST_CASE("The only weights file next to a config.json is the model, whatever its name") {
  const Input input;
  convert(input / "model", input / "one", {.layout = "hf", .format = Format::kPytorch});
  fs::rename(input / "one/pytorch_model.bin", input / "one/checkpoint.pt");
  write_file(input / "one/tokenizer.json", "{}");
  write_file(input / "one/rng_state.pth", "x");
  shard(input / "one", input / "out", {.layout = "nxd", .tp = 2});
  CHECK(fs::exists(input / "out/tokenizer.json"));
  CHECK((consolidated(input / "out", input / "whole") == input.tensors));
  CHECK((converted(input / "one", input / "again") == input.tensors));
  CHECK_THAT(joined_notes(*plan_convert(convert_request(input / "one", input / "none", {}))),
             Says("reading checkpoint.pt, the only weights file"));

  fs::copy(input / "one/checkpoint.pt", input / "one/other.pt");
  check_refused([&] { read_checkpoint(input / "one", {}); }, {.says = "contains neither model.safetensors"});
}

TEST_CASE("Where a model is wanted, the directory of an adapter is named as one") {
  const Input input;
  fs::create_directories(input / "adapter");
  fs::copy_file(input / "model/model.safetensors", input / "adapter/adapter_model.safetensors");
  check_refused([&] { plan_shard(shard_request(input / "adapter", input / "out", 2)); },
                {.hint = "give the directory of its model, and this one as `adapter`"});
}

TEST_CASE("A single file that is not all of the model is refused when it is sharded or consolidated") {
  const Input input({}, {.layout = "nxd", .tp = 2});
  TensorMap part = input.tensors;
  part.erase("model.norm.weight");
  const fs::path file = input / "model/part.safetensors";
  write_safetensors(file, part);
  check_refused([&] { plan_shard(shard_request(file, input / "none", 2)); }, {.tensor = "model.norm.weight"});
  check_error(folder_refusal(input, file), {.tensor = "model.norm.weight"});
  CHECK_THAT(folder_refusal(input, input.rank_file(0)).what(), Says("is one rank of a sharded checkpoint"));

  write_file(input / "model/config.json", R"({"model_type": "nobody"})");
  check_refused([&] { plan_shard(shard_request(input / "model/model.safetensors", input / "none", 2)); },
                {.kind = ErrorKind::kUnsupported, .says = "nobody"});
}

/// neuron_config.json of a compiled model as NxD Inference writes it; the file is no strict JSON.
void write_neuron_config(const fs::path& directory, const TinyModel& model) {
  json config = model.config();
  config.erase("torch_dtype");
  config["original_hidden_size"] = config["hidden_size"];
  config["hidden_size"] = 1024;  // as padded
  config["fused_spec_config"] = config["metadata"] = nullptr;
  config["attribute_map"] = json::object();
  config["neuron_config"] = {{"tp_degree", 2}, {"torch_dtype", "bfloat16"}, {"quantize_clamp_bound", "INF"}};
  std::string text = config.dump(1);
  text.replace(text.find("\"INF\""), 5, "Infinity");
  write_file(directory / "neuron_config.json", text);
}

TEST_CASE("A compiled model's neuron_config.json stands for config.json, and becomes one without NxD's keys") {
  const Input input({}, {.layout = "nxdi", .tp = 2});
  fs::remove(input / "out/config.json");
  write_neuron_config(input / "out", input.model);
  json expected = input.model.config();
  expected["torch_dtype"] = "bfloat16";
  for (const char* source : {"out", "out/weights"}) {
    CHECK((consolidated(input / source, input / "whole") == input.tensors));
    CHECK((json::parse(read_file(input / "whole/config.json")) == expected));
    CHECK_FALSE(fs::exists(input / "whole/neuron_config.json"));
  }
  // Given by name, and with another dtype.
  fs::create_directories(input / "apart");
  fs::copy(input / "out/weights", input / "apart/weights");
  consolidated(input / "apart", input / "half", {.dtype = DType::kF16, .config = input / "out/neuron_config.json"});
  expected["torch_dtype"] = "float16";
  CHECK((json::parse(read_file(input / "half/config.json")) == expected));
}

TEST_CASE("An export of optimum-neuron is read from its own folder and from those in it") {
  const Input input;
  shard(input / "model", input / "exported/checkpoint", {.layout = "nxdi", .tp = 2});
  fs::rename(input / "exported/checkpoint/config.json", input / "exported/config.json");
  write_file(input / "exported/neuron_config.json", R"({"tp_degree": 2, "torch_dtype": "bfloat16"})");
  for (const char* source : {"exported", "exported/checkpoint", "exported/checkpoint/weights"}) {
    CHECK((consolidated(input / source, input / "whole") == input.tensors));
    CHECK((read_file(input / "whole/config.json") == read_file(input / "model/config.json")));
    CHECK_FALSE(fs::exists(input / "whole/neuron_config.json"));
  }
}

TEST_CASE("Ranks of NxD's older form are found in shards/, and other folders with checkpoints are named") {
  const Input input({}, {.layout = "ranks", .tp = 2});
  fs::rename(input / "out/tensor_parallel_shards", input / "out/shards");
  CHECK((input.whole() == input.tensors));

  const Input misplaced({}, {.layout = "nxd", .tp = 2});
  fs::rename(misplaced / "out/model", misplaced / "out/shards");
  CHECK_THAT(folder_refusal(misplaced, misplaced / "out").hint(), Says("belong in shards/model/: move them there"));
  fs::create_directories(misplaced / "out/moved");
  fs::rename(misplaced / "out/shards", misplaced / "out/moved/model");
  fs::rename(misplaced / "out/moved", misplaced / "out/shards");
  CHECK((misplaced.whole() == misplaced.tensors));

  shard(input / "model", input / "traced/text_model", {.layout = "nxdi", .tp = 2});
  const Error one = folder_refusal(input, input / "traced");
  CHECK_THAT(one.hint(), Says("text_model/ in it contains a checkpoint"));
  CHECK(error_of([&] { read_checkpoint(input / "traced", {}); }).hint() == one.hint());
  fs::create_directories(input / "above");
  fs::create_symlink(input / "traced", input / "above/traced");
  CHECK_THAT(folder_refusal(input, input / "above").hint(), Says("traced/text_model/ in it contains a checkpoint"));
  write_model(input / "traced/vision_model", input.model, input.tensors);
  CHECK_THAT(folder_refusal(input, input / "traced").hint(), Says("give one of them: text_model/, vision_model/"));

  // The config.json of both parts does not describe the text model's files, but its text_config does.
  fs::rename(input / "traced/text_model/config.json", input / "text.json");
  write_file(
      input / "both.json",
      json({{"model_type", "llava"}, {"text_config", input.model.config()}, {"vision_config", json::object()}}).dump());
  const fs::path text = input / "traced/text_model";
  CHECK_THAT(error_of([&] { consolidated(text, input / "none", {.config = input / "both.json"}); }).hint(),
             Says("a config.json with the contents of text_config"));
  CHECK((consolidated(text, input / "text", {.config = input / "text.json"}) == input.tensors));
}

TEST_CASE("A model of diffusers is read by the names of its files, and not sharded") {
  const TempDir temp;
  Random random(2);
  TensorMap tensors;
  for (const char* name : {"transformer_blocks.0.attn.to_q.weight", "transformer_blocks.1.attn.to_q.weight"})
    tensors[name] = random_tensor(random, DType::kBF16, {4, 2});
  json index = {{"metadata", {{"total_size", 32}}}, {"weight_map", json::object()}};
  int number = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::string file = "diffusion_pytorch_model-0000" + std::to_string(++number) + "-of-00002.safetensors";
    write_safetensors(temp / "transformer" / file, {{name, tensor}});
    index["weight_map"][name] = file;
  }
  write_file(temp / "transformer/config.json", R"({"_class_name": "FluxTransformer2DModel"})");
  const fs::path index_file = temp / "transformer/diffusion_pytorch_model.safetensors.index.json";
  write_file(index_file, index.dump());
  CHECK(read_checkpoint(temp / "transformer", {}).map.tensor_count() == 2);
  CHECK((converted(temp / "transformer", temp / "out") == tensors));
  check_refused([&] { plan_shard(shard_request(temp / "transformer", temp / "shards", 2)); }, {.says = "model_type"});

  fs::remove(index_file);
  write_safetensors(temp / "transformer/diffusion_pytorch_model.safetensors", tensors);
  CHECK((read_whole(temp / "transformer") == tensors));
}

}  // namespace
}  // namespace reshard::test
