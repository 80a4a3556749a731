// What users give is often one level away from what is read, or has another program's names: the config.json of another
// directory, NxD Inference's neuron_config.json, folders of runs and exports, a single file, diffusers' index.

#include <nlohmann/json.hpp>

#include "reshard/layouts/core/checkpoint.h"
#include "reshard/plan/job/convert.h"
#include "support/checkpoints.h"
#include "support/errors.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

ConsolidateRequest consolidation(const fs::path& source, const fs::path& output) {
  ConsolidateRequest request;
  request.source.path = source;
  request.output_directory = output;
  return request;
}

/// A llama in a Hugging Face directory.
struct SomeModel {
  TinyModel model;
  TensorMap tensors;

  explicit SomeModel(const fs::path& directory) {
    Random random(1);
    tensors = random_tensors(model, random);
    write_model(directory, model, tensors);
  }
};

TEST_CASE("A model without config.json is sharded by the one of --config, which goes along") {
  const TempDir temp;
  const SomeModel some(temp / "model");
  fs::rename(temp / "model/config.json", temp / "config.json");
  ShardRequest request = deployed_request(layout("nxd"), temp / "model", temp / "out", 2);
  check_refused([&] { plan_shard(request); }, {.hint = "`config`"});
  request.source.config = temp / "config.json";
  shard(request);
  CHECK((read_file(temp / "out/config.json") == read_file(temp / "config.json")));
  CHECK((consolidated(temp / "out", temp / "whole") == some.tensors));
}

TEST_CASE("A single file is a model that is sharded, converted and consolidated") {
  const TempDir temp;
  const SomeModel some(temp / "model");
  ConvertRequest to_torch = convert_request(temp / "model", temp / "torch");
  to_torch.target.layout = layout("hf");
  to_torch.target.format = Format::kPytorch;
  convert(to_torch);
  for (const char* name : {"full.pt", "full.pth", "full.bin"}) {
    DYNAMIC_SECTION(name) {
      fs::create_directories(temp / "full");
      const fs::path file = temp / "full" / name;
      fs::copy_file(temp / "torch/pytorch_model.bin", file);

      ShardRequest request = deployed_request(layout("nxd"), file, temp / "out", 2);
      request.source.config = temp / "model";
      shard(request);
      CHECK((consolidated(temp / "out", temp / "whole") == some.tensors));

      consolidate(consolidation(file, temp / "one"));
      CHECK((read_whole(temp / "one") == some.tensors));
      ConsolidateRequest nowhere = consolidation(file, {});
      nowhere.output_directory.reset();
      CHECK(error_of([&] { plan_consolidate(nowhere); }).kind() == ErrorKind::kUsage);

      // The folder with it names it.
      const Error folder = check_refused([&] { read_checkpoint(temp / "full", {ConfigUse::kStrict}); },
                                         {.hint = std::string(name) + " in it is a file of weights: give that file"});
      CHECK(error_of([&] { plan_consolidate(consolidation(temp / "full", temp / "two")); }).hint() == folder.hint());
    }
  }
}

TEST_CASE("Where a model is wanted, the directory of an adapter is named as one") {
  const TempDir temp;
  const SomeModel some(temp / "model");
  fs::create_directories(temp / "adapter");
  fs::copy_file(temp / "model/model.safetensors", temp / "adapter/adapter_model.safetensors");
  const Error error =
      error_of([&] { plan_shard(deployed_request(layout("ranks"), temp / "adapter", temp / "out", 2)); });
  CHECK(error.kind() == ErrorKind::kBadInput);
  CHECK_THAT(error.hint(), Says("give the directory of its model, and this one as `adapter`"));
}

TEST_CASE("A single file that is not all of the model is refused when it is sharded or consolidated") {
  const TempDir temp;
  const SomeModel some(temp / "model");
  TensorMap part = some.tensors;
  part.erase("model.norm.weight");
  write_safetensors(temp / "model/part.safetensors", part);
  ShardRequest request = deployed_request(layout("ranks"), temp / "model/part.safetensors", temp / "out", 2);
  for (const Error& error : {error_of([&] { plan_shard(request); }), error_of([&] {
                               plan_consolidate(consolidation(temp / "model/part.safetensors", temp / "out"));
                             })}) {
    CHECK(error.kind() == ErrorKind::kBadInput);
    CHECK(error.tensor() == "model.norm.weight");
  }
  shard(deployed_request(layout("nxd"), temp / "model", temp / "ranks", 2));
  const fs::path rank = temp / "ranks/model/dp_rank_00_tp_rank_00_pp_rank_00.pt";
  CHECK_THAT(error_of([&] { plan_consolidate(consolidation(rank, temp / "out")); }).what(), Says("is not a directory"));

  write_file(temp / "model/config.json", R"({"model_type": "nobody"})");
  request.source.path = temp / "model/model.safetensors";
  CHECK_THAT(error_of([&] { plan_shard(request); }).what(), Says("nobody"));
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
  const TempDir temp;
  const SomeModel some(temp / "model");
  shard(deployed_request(layout("nxdi"), temp / "model", temp / "traced", 2));
  fs::remove(temp / "traced/config.json");
  write_neuron_config(temp / "traced", some.model);
  json expected = some.model.config();
  expected["torch_dtype"] = "bfloat16";
  for (const fs::path& source : {temp / "traced", temp / "traced/weights"}) {
    CHECK((consolidated(source, temp / "whole") == some.tensors));
    CHECK((json::parse(read_file(temp / "whole/config.json")) == expected));
    CHECK_FALSE(fs::exists(temp / "whole/neuron_config.json"));
  }
  // Given by name, and with another dtype.
  fs::create_directories(temp / "apart");
  fs::copy(temp / "traced/weights", temp / "apart/weights");
  ConsolidateRequest request = consolidation(temp / "apart", temp / "half");
  request.source.config = temp / "traced/neuron_config.json";
  request.dtype = DType::kF16;
  consolidate(request);
  expected["torch_dtype"] = "float16";
  CHECK((json::parse(read_file(temp / "half/config.json")) == expected));
}

TEST_CASE("An export of optimum-neuron is read from its own folder and from those in it") {
  const TempDir temp;
  const SomeModel some(temp / "model");
  shard(deployed_request(layout("nxdi"), temp / "model", temp / "exported/checkpoint", 2));
  fs::rename(temp / "exported/checkpoint/config.json", temp / "exported/config.json");
  write_file(temp / "exported/neuron_config.json", R"({"tp_degree": 2, "torch_dtype": "bfloat16"})");
  for (const fs::path& source :
       {temp / "exported", temp / "exported/checkpoint", temp / "exported/checkpoint/weights"}) {
    CHECK((consolidated(source, temp / "whole") == some.tensors));
    CHECK((read_file(temp / "whole/config.json") == read_file(temp / "model/config.json")));
    CHECK_FALSE(fs::exists(temp / "whole/neuron_config.json"));
  }
}

TEST_CASE("Ranks of NxD's older form are found in shards/, and other folders with checkpoints are named") {
  const TempDir temp;
  const SomeModel some(temp / "model");
  shard(deployed_request(layout("ranks"), temp / "model", temp / "old", 2));
  fs::rename(temp / "old/tensor_parallel_shards", temp / "old/shards");
  CHECK((consolidated(temp / "old", temp / "whole") == some.tensors));

  shard(deployed_request(layout("nxdi"), temp / "model", temp / "traced/text_model", 2));
  const Error one = check_refused([&] { plan_consolidate(consolidation(temp / "traced", temp / "out")); },
                                  {.hint = "text_model/ in it contains a checkpoint"});
  CHECK(error_of([&] { read_checkpoint(temp / "traced", {}); }).hint() == one.hint());
  write_model(temp / "traced/vision_model", some.model, some.tensors);
  CHECK_THAT(error_of([&] { plan_consolidate(consolidation(temp / "traced", temp / "out")); }).hint(),
             Says("give one of them: text_model/, vision_model/"));
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
  convert(convert_request(temp / "transformer", temp / "out"));
  CHECK((read_whole(temp / "out") == tensors));
  const Error unknown =
      error_of([&] { plan_shard(deployed_request(layout("ranks"), temp / "transformer", temp / "shards", 2)); });
  CHECK_THAT(unknown.what(), Says("model_type"));

  fs::remove(index_file);
  write_safetensors(temp / "transformer/diffusion_pytorch_model.safetensors", tensors);
  CHECK((read_whole(temp / "transformer") == tensors));
}

}  // namespace
}  // namespace reshard::test
