// Checkpoints of systems that are not read: names and files that only they have.

#include "reshard/layouts/core/strangers.h"

#include <optional>
#include <string>
#include <vector>

#include "reshard/io/memory_files.h"
#include "reshard/io/open_store.h"
#include "reshard/layouts/core/checkpoint.h"
#include "support/files.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

using Names = std::vector<std::string_view>;

TEST_CASE("A tensor's name that only one system has names the system and what to do") {
  struct Case {
    const char* tensor;
    const char* system;
    const char* hint;
    Names others = {};
  };
  const char* const unmerged = "LoRA adapter that is not merged";
  const char* const eagle = "draft model of EAGLE";
  const Case cases[] = {
      {"draft_model.norm.weight", "fused speculation", "`fused-model` draft", {"rank_util.rank"}},
      {"medusa_head_0.1.weight", "Medusa heads", "without them", {"norm.weight"}},
      {"layers.0.q_proj.lora_A.weight_active",
       "multi-LoRA serving",
       "the adapters",
       {"layers.0.q_proj.base_layer.weight"}},
      {"model.layers.0.mlp.down_proj.base_layer.weight", unmerged, "merge_lora"},
      {"model.layers.0.self_attn.qkv_proj.lora_B.weight_q", unmerged, "merge_and_unload", {"norm.weight"}},
      {"model.layers.0.self_attn.q_proj.lora_A.default.weight", "the base model's weights are missing",
       "save_pretrained"},
      {"layers.0.cte_mlp.up_proj.weight", "mlp_cp_degree", "Hugging Face model"},
      {"layers.0.self_attn.tkg_o_proj.o_proj.weight", "context encoding", "Hugging Face model"},
      {"decoder.layers.self_attention.linear_qkv.weight", "Megatron-LM", "export"},
      {"decoder.layers.3.mlp.linear_fc1.weight", "Megatron-LM", "export", {"embedding.weight"}},
      {"fc.weight", eagle, "`family` to llama_eagle", {"layers.0.mlp.up_proj.weight"}},
      {"layers.0.hidden_norm.weight", eagle, "shard it with its target", {"layers.0.mlp.up_proj.weight"}},
      {"layers.0.mlp.up_proj.scale", "NxD's own quantisation", "set `config`", {"layers.0.mlp.up_proj.weight"}}};
  for (const Case& each : cases) {
    INFO(each.tensor);
    Names names = each.others;
    names.emplace_back(each.tensor);
    const std::optional<Error> error = stranger_among(names, nullptr);
    REQUIRE(error);
    check_error(*error,
                {.kind = ErrorKind::kUnsupported, .tensor = each.tensor, .says = {each.system}, .hint = each.hint});
  }
}

TEST_CASE("Names that a model has are no stranger's") {
  const Names names{"draft_model.norm.weight"};
  Model model;
  CHECK(stranger_among(names, &model));
  model.parameters.push_back({});
  model.parameters.back().name = names.front();
  CHECK_FALSE(stranger_among(names, &model));
  model.by_config_plan = true;  // every tensor is such a model's
  CHECK(stranger_among(names, &model));

  // What other models may be called, too, gives nobody away.
  for (const Names& others : std::vector<Names>{{"fc.weight", "layers.0.up.weight", "layers.1.up.weight"},
                                                {"norm.scale"},
                                                {"rank_util.rank", "up.scale", "up.weight"},
                                                {"visual.blocks.0.mlp.linear_fc1.weight"},
                                                {"language_model.model.layers.0.mlp.up_proj.weight"}})
    CHECK_FALSE(stranger_among(others, nullptr));
  CHECK_FALSE(stranger_among({"fc.weight", "layers.0.up.weight"}, &model));
  CHECK_FALSE(stranger_among({"conv1.weight", "fc.weight"}, nullptr));  // a classifier
}

TEST_CASE("Files that only one system writes name the system") {
  for (const auto& [file, system] : std::vector<std::pair<fs::path, const char*>>{
           {"mp_rank_00_000_001/model_optim_rng.pt", "Megatron-LM"},
           {"model_optim_rng.pt", "Megatron-LM"},
           {"iter_0000005/common.pt", "Megatron-LM"},
           {"tp_rank_00_pp_rank_000/model_optim_rng.ckpt", "neuronx-nemo-megatron"},
           {"consolidated.00.pth", "Meta's tensor names"},
           {"consolidated.safetensors", "Mistral's tensor names"},
           {"consolidated-00001-of-00002.safetensors", "Mistral's tensor names"},
           {"rank0.engine", "TensorRT-LLM"},
           {"rank1.safetensors", "TensorRT-LLM"},
           {"model-Q4_K_M.gguf", "llama.cpp"},
           {"model.onnx", "ONNX"},
           {"tf_model.h5", "TensorFlow"},
           {"flax_model.msgpack", "Flax"},
           {"bert_model.ckpt.data-00000-of-00001", "TensorFlow"},
           {"pytorch_model-00003-TP-000.safetensors", "split for SGLang's tensor-parallel ranks, such as grok-2"},
           {"model0-mp8.safetensors", "DeepSeek's inference code"},
           {"manifest.ocdbt", "Orbax"},
           {"items/manifest.ocdbt", "Orbax"},
           {"model_state.pdparams", "PaddlePaddle"},
           {"llama.nemo", "NeMo"},
           {"weights.npz", "MLX"}}) {
    INFO(file);
    MemoryFiles files;
    files.write("run" / file, "{}");
    for (const SourceKind kind : {SourceKind::kAny, SourceKind::kShards, SourceKind::kWhole})
      check_refused([&] { read_checkpoint(files, found_at(files, "run", kind), {}); },
                    {.kind = ErrorKind::kUnsupported, .path = "run" / file, .says = system});
  }
}

TEST_CASE("Golden: checkpoints that are not read say what they are, with a config.json and without") {
  for (const auto& [name, folder, system] : std::vector<std::tuple<std::string, const char*, const char*>>{
           {"mixtral-legacy-sequential-local-ep2-pp2", "checkpoint/iter_0000005", "Megatron-LM"}}) {
    INFO(name);
    const fs::path golden = testdata("golden/strangers") / name, checkpoint = golden / folder;
    MemoryFiles files;
    load(files, golden);
    for (const bool has_config : {false, true}) {
      ReadContext context;
      context.use = has_config ? ConfigUse::kStrict : ConfigUse::kLenient;
      if (has_config) context.config.path = golden / "original";
      const Error error = check_refused([&, at = checkpoint] { read_checkpoint(files, at, context); },
                                        {.kind = ErrorKind::kUnsupported, .says = system, .hint = " "});
      CHECK_THAT(error.path(), Says(checkpoint.string()));
      CHECK_THAT(error.hint(), !Says("another model") && !Says("expert parallelism"));
    }
  }
}

TEST_CASE("Files of other systems next to a model do not keep it from being read") {
  MemoryFiles files;
  files.write("model/model.safetensors", safetensors_bytes({{"a.weight", {DType::kU8, {2}, "ab"}}}));
  for (const char* name : {"consolidated.safetensors", "model.gguf", "onnx/model.onnx", "tf_model.h5"})
    files.write(fs::path("model") / name, "{}");
  CHECK(read_checkpoint(files, "model", {}).map.logical.size() == 1);
}

TEST_CASE("A model in the cache of the Hugging Face Hub names its snapshot") {
  MemoryFiles files;
  const fs::path model = "hub/models--org--name";
  const std::string weights = safetensors_bytes({{"a.weight", {DType::kU8, {2}, "ab"}}});
  files.write(model / "snapshots/old/model.safetensors", weights);
  const auto hint = [&] { return error_of([&] { read_checkpoint(files, model, {}); }).hint(); };
  CHECK_THAT(hint(), Says((model / "snapshots/old").string()));
  files.write(model / "snapshots/new/model.safetensors", weights);
  CHECK_THAT(hint(),
             Says("one of its snapshots, hub/models--org--name/snapshots/new, hub/models--org--name/snapshots/old"));
  files.write(model / "refs/main", "new\n");
  CHECK_THAT(hint(), Says((model / "snapshots/new").string()));
  files.write(model / "refs/main", "../../other");
  CHECK_THAT(hint(), Says("one of its snapshots") && !Says("other"));
}

TEST_CASE("A path that has the form of a model's name on the Hugging Face Hub gets the command that fetches it") {
  MemoryFiles files;
  files.write("here/model.safetensors", "");
  for (const SourceKind kind : {SourceKind::kAny, SourceKind::kShards, SourceKind::kWhole}) {
    const auto read = [&](Files& store, const std::string& path, const ReadContext& context) {
      read_checkpoint(store, found_at(store, path, kind), context);
    };
    CHECK_THAT(error_of([&] { read(files, "Qwen/Qwen3-8B", {}); }).hint(), Says("hf download Qwen/Qwen3-8B"));
    for (const char* path : {"hf://Qwen/Qwen3-8B", "https://huggingface.co/Qwen/Qwen3-8B"})
      CHECK_THAT(error_of([&] { read(all_files(), path, {}); }).hint(), Says("hf download Qwen/Qwen3-8B"));
    for (const char* path : {"here/Qwen3-8B", "/Qwen/Qwen3-8B", "./Qwen3-8B", "Qwen3-8B", "a/b/c"})
      CHECK_THAT(error_of([&] { read(files, path, {}); }).hint(), !Says("hf download"));
  }
}

TEST_CASE("Whole tensors of another system are read by their names, with a note") {
  MemoryFiles files;
  files.write("model/model.safetensors",
              safetensors_bytes({{"decoder.layers.mlp.linear_fc1.weight", {DType::kU8, {2}, "ab"}}}));
  const Checkpoint checkpoint = read_checkpoint(files, "model", {});
  REQUIRE(checkpoint.notes.size() == 1);
  CHECK_THAT(checkpoint.notes.front(),
             Says("belongs to a checkpoint of Megatron-LM") && Says("names and shapes are kept"));
}

}  // namespace
}  // namespace reshard::test
