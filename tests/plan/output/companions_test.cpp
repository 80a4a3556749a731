#include "reshard/io/local_storage.h"
#include "reshard/io/memory_files.h"
#include "reshard/plan/output/model_files.h"
#include "support/catch.h"
#include "support/errors.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/temp_dir.h"
#include "support/unprivileged.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

const std::string kRank = "model/dp_rank_00_tp_rank_00_pp_rank_00.pt";
using Paths = std::vector<std::string>;

Paths names_of(const Companions& found) {
  Paths names;
  for (const CopiedFile& file : found.files) names.push_back(file.path.string());
  return names;
}

TEST_CASE("All that lies next to a model comes along if asked for, but no weights, checkpoints and marks") {
  struct Row {
    const char* what;
    Paths come, stay;
    Paths notes = {};
  };
  const Row rows[] = {
      {"files of the model, folders and all",
       {"README.md", "config.json", "generation_config.json", "sub/deep/vocab.txt", "tokenizer.json", "tokenizer.model",
        "training_args.bin"},
       {}},
      {"weights of any format and indexes of weights",
       {},
       {"model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json",
        "model.fp16.safetensors", "model.safetensors.index.fp16.json", "pytorch_model.bin.index.bf16.json",
        "pytorch_model.bin", "pytorch_model.bin.index.json", "x.pt", "x.pth", "x.ckpt", "tf_model.h5",
        "flax_model.msgpack", "x.gguf", "weights.npz", "rust_model.ot", "onnx/model.onnx"}},
      {"lists of digests, and signatures of these, of weights and of the whole directory",
       {"README.md", "README.md.asc", "x.sig"},
       {"SHA256SUMS", "SHA256SUMS.sig", "SHA256SUMS.asc", "reshard.manifest.json",
        "reshard.manifest.json.sigstore.json", "model.sig", "model.safetensors.sig", "sub/SHA256SUMS.minisig"}},
      {"hidden files, training checkpoints, adapters and shards",
       {"checkpoint.txt"},
       {".gitattributes", ".git/config", ".cache/x/y.json", "checkpoint-500/config.json",
        "adapter_default/adapter_config.json", "shards/mp_metadata_pp_rank_0.json",
        "tensor_parallel_shards/mp_metadata_pp_rank_0.json", "tp_rank_00_pp_rank_00/notes.txt", "trn_config.json"},
       {"folders that are separate checkpoints are left out: checkpoint-500, shards, tensor_parallel_shards, "
        "tp_rank_00_pp_rank_00",
        "hidden files are left out: .cache, .git, .gitattributes"}},
      {"checkpoints of the training run whatever their names, and the marks of a save",
       {"config.json", "docs/done", "docs/latest", "epoch_2/picture.png"},
       {kRank, "any/done", "any/user.json", "any/" + kRank, "checkpoint", "done", "epoch_1/config.json",
        "epoch_1/model.safetensors", "latest", "optim/__0_0.distcp", "step_3/checkpoint", "step_3/done",
        "step_3/" + kRank},
       {"folders that are separate checkpoints are left out: any, epoch_1, model, step_3"}},
      {"folders that are separate checkpoints with all they hold",
       {"config.json", "runs/notes.txt"},
       {"checkpoint-5/trainer_state.json",
        "half/config.json",
        "half/model.safetensors",
        "half/tokenizer.json",
        "index/model.safetensors.index.json",
        "index/tokenizer.json",
        "lora/adapter_config.json",
        "lora/adapter_model.safetensors",
        "nxd/config.json",
        "nxd/" + kRank,
        "optimum/config.json",
        "optimum/shards/" + kRank,
        "ranks/config.json",
        "ranks/tensor_parallel_shards/tp_rank_00_pp_rank_00/model.safetensors",
        "renamed/mp_metadata_pp_rank_0.json",
        "renamed/tp_rank_00_pp_rank_00/model.safetensors",
        "runs/big/config.json",
        "runs/big/pytorch_model-00001-of-00002.bin",
        "serve/config.json",
        "serve/weights/tp0_sharded_checkpoint.safetensors",
        "step_1/model/rank.pt",
        "step_1/optim/rank.pt",
        "step_1/user_content.json",
        "step_2/checkpoint",
        "step_2/done",
        "step_2/optim/rank.pt",
        "step_2/user_content.json",
        "variant/pytorch_model.bin.index.fp16.json"},
       {"folders that are separate checkpoints are left out: checkpoint-5, half, index, lora, nxd, optimum, ranks, "
        "renamed, runs/big, serve, step_1, step_2, variant"}},
      {"folders that look a little like checkpoints",
       {"1_Pooling/config.json", "assets/config.json", "assets/training_args.bin", "config.json",
        "done/model/readme.txt", "onnx/config.json", "original/params.json", "original/tokenizer.model",
        "scripts/checkpoint"},
       {"onnx/model.onnx", "original/consolidated.00.pth"}}};
  for (const Row& row : rows) DYNAMIC_SECTION(row.what) {
      MemoryFiles files;
      files.make_directory("m/empty");
      for (const Paths& names : {row.come, row.stay})
        for (const std::string& name : names) files.write(fs::path("m") / name, name);
      const Companions found = companion_files(files, "m", CompanionFiles::kAll);
      CHECK(names_of(found) == row.come);
      CHECK(found.notes.texts() == row.notes);
      for (const CopiedFile& file : found.files) {
        CHECK(file.size_bytes == file.path.string().size());
        CHECK(file.source == "m" / file.path);
      }
    }
}

TEST_CASE("What belongs to a model comes along, and what else lies next to it is named") {
  struct Row {
    const char* what;
    Paths come, stay;
    Paths left;
  };
  const Row rows[] = {
      {"tokenizers and their settings, of any program",
       {"added_tokens.json",
        "additional_chat_templates/tool_use.jinja",
        "chat_template.jinja",
        "config.json",
        "dict.txt",
        "encoder.json",
        "entity_vocab.json",
        "generation_config.json",
        "ice_text.model",
        "merges.txt",
        "preprocessor_config.json",
        "processor_config.json",
        "qformer_tokenizer/tokenizer.json",
        "qformer_tokenizer/vocab.txt",
        "qwen.tiktoken",
        "source.spm",
        "special_tokens_map.json",
        "spiece.model",
        "tekken.json",
        "tokenizer.json",
        "tokenizer.model.v3",
        "tokenizer_config.json",
        "video_preprocessor_config.json",
        "vocab.json",
        "vocab.txt"},
       {},
       {}},
      {"settings of quantisation, of Sentence-Transformers and of the model's task",
       {"1_Pooling/config.json", "config_sentence_transformers.json", "configuration.json", "hf_quant_config.json",
        "kv_cache_scales.json", "modules.json", "normalizer.json", "quant_model_description_w8a8.json",
        "quantize_config.json", "sentence_bert_config.json"},
       {},
       {}},
      {"what people read",
       {"LICENSE", "LICENSES/MIT.txt", "MODEL_LICENSE", "NOTICE", "Notice.txt", "README.md", "README_zh-CN.md",
        "SYSTEM_PROMPT.txt", "THIRD_PARTY_NOTICES.md", "USE_POLICY.md", "license.txt", "model_card.md"},
       {},
       {}},
      {"what a trainer saves with a step", {"trainer_state.json", "training_args.bin"}, {}, {}},
      {"keys, programs, logs, pictures and videos",
       {"config.json"},
       {"all_results.json", "assets/demo.mp4", "assets/demo.png", "ds_config.json", "id_rsa", "license_key.pem",
        "runs/Nov01/events.out.tfevents.1", "train.log", "train.py", "wandb/config.yaml"},
       {"all_results.json", "assets/", "ds_config.json", "id_rsa", "license_key.pem", "runs/", "train.log", "train.py",
        "wandb/"}},
      {"of a folder with both, the files that stay", {"1_Pooling/config.json"}, {"1_Pooling/note"}, {"1_Pooling/note"}},
      {"settings of an adapter without its weights", {}, {"adapter_config.json"}, {"adapter_config.json"}}};
  for (const Row& row : rows) DYNAMIC_SECTION(row.what) {
      MemoryFiles files;
      for (const Paths& names : {row.come, row.stay})
        for (const std::string& name : names) files.write(fs::path("m") / name, "{}");
      const Companions found = companion_files(files, "m", CompanionFiles::kModel);
      CHECK(names_of(found) == row.come);
      CHECK(found.left == row.left);
    }
}

TEST_CASE("Code that configs name comes along, with the modules that it imports relatively") {
  MemoryFiles files;
  files.write("m/config.json", R"({"auto_map": {"AutoConfig": "configuration_x.XConfig", "AutoModel": "modeling_x.X",
                                  "AutoTokenizer": ["own--tokenization_y.Y", null]},
                                  "custom_pipelines": {"sum": {"impl": "pipelines.sums.Sum"}}, "type": "other.Thing"})");
  files.write("m/tokenizer_config.json", R"({"auto_map": {"AutoTokenizer": ["tokenization_x.X", null]}})");
  files.write("m/modules.json",
              R"([{"type": "custom_st.Pooling"}, {"type": "/etc/x.y"}, {"type": "..up.x"}, {"type": ""}])");
  files.write("m/modeling_x.py",
              "import torch\nfrom .attention import Attention\n  from . import (rope as r, mlp)\n"
              "from .layers.norm import Norm\nfrom transformers import top\n");
  files.write("m/layers/norm.py", "from ..shared import *\nfrom .modeling_x import Y\nfrom ...outside import z\n");
  files.write("outside.py", "");
  for (const char* name : {"configuration_x", "tokenization_x", "tokenization_y", "custom_st", "attention", "rope",
                           "mlp", "shared", "top", "other", "layers/__init__", "layers/unused", "pipelines/sums"})
    files.write(fs::path("m") / (std::string(name) + ".py"), "x = 1\n");
  const Companions found = companion_files(files, "m", CompanionFiles::kModel);
  CHECK(names_of(found) == Paths{"attention.py", "config.json", "configuration_x.py", "custom_st.py",
                                 "layers/__init__.py", "layers/norm.py", "mlp.py", "modeling_x.py", "modules.json",
                                 "pipelines/sums.py", "rope.py", "shared.py", "tokenization_x.py",
                                 "tokenizer_config.json"});
  CHECK(found.left == Paths{"layers/unused.py", "other.py", "tokenization_y.py", "top.py"});
}

TEST_CASE("Classes of Transformers and of Sentence-Transformers are no code that the model lacks") {
  MemoryFiles files;
  files.write("m/config.json", R"({"auto_map": {"AutoModel": "modeling_x.X"},
                                  "custom_pipelines": {"pair": {"impl": "pipeline_x.Pair", "type": "text",
                                    "pt": ["AutoModelForSequenceClassification"], "tf": ["TFAutoModel"]}}})");
  files.write("m/modules.json",
              R"([{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
                                   {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}])");
  CHECK(model_code(files, "m").missing == std::vector<fs::path>{"modeling_x.py", "pipeline_x.py"});
}

TEST_CASE("Hidden files are never copied, and a note names them where everything else is") {
  MemoryFiles files;
  for (const char* name : {"config.json", ".gitattributes", ".cache/x", "sub/.env", "sub/readme.txt"})
    files.write(fs::path("m") / name, "x");
  CHECK(companion_files(files, "m", CompanionFiles::kModel).notes.empty());
  const Companions all = companion_files(files, "m", CompanionFiles::kAll);
  CHECK(names_of(all) == Paths{"config.json", "sub/readme.txt"});
  CHECK(all.notes.texts() == Paths{"hidden files are left out: .cache, .gitattributes, sub/.env"});
}

TEST_CASE("The checkpoint that is read and the one that is written stay behind without a note") {
  MemoryFiles files;
  for (const std::string& name : {std::string("config.json"), "step_9/" + kRank, std::string("step_9/done"),
                                  std::string("out/half/config.json"), std::string("out/half/model.safetensors")})
    files.write(fs::path("m") / name, name);
  const Companions found = companion_files(files, "m", CompanionFiles::kAll, {"m/step_9/model", "m/out/half"});
  CHECK(names_of(found) == Paths{"config.json"});
  CHECK(found.notes.empty());
}

TEST_CASE("Linked files are followed, linked folders are not, and links that lead nowhere are noted by name") {
  const TempDir temp;
  write_file(temp / "blobs/abc", "{\"x\": 1}");
  write_file(temp / "elsewhere/file.txt", "");
  fs::create_directories(temp / "model/sub");
  fs::create_symlink("../blobs/abc", temp / "model/config.json");
  fs::create_symlink(temp / "blobs/abc", temp / "model/tokenizer.json");
  fs::create_directory_symlink("../elsewhere", temp / "model/linked");
  fs::create_directory_symlink(".", temp / "model/itself");
  for (const char* name : {"old.safetensors", "sub/merges.txt", "vocab.json"})
    fs::create_symlink(temp / "gone", temp / "model" / name);
  const Companions found = companion_files(temp / "model");
  CHECK(names_of(found) == Paths{"config.json", "tokenizer.json"});
  for (const CopiedFile& file : found.files) CHECK(file.size_bytes == 8);
  CHECK(found.notes.texts() == Paths{"folders that are links are left out: itself, linked",
                                     "broken links are left out: old.safetensors, sub/merges.txt, vocab.json"});
}

TEST_CASE("A link to itself is passed over, or an Error: nothing else is thrown") {
  const TempDir temp;
  write_file(temp / "config.json", "{}");
  fs::create_symlink("loop.txt", temp / "loop.txt");
  std::vector<std::string> names;
  try {
    names = names_of(companion_files(temp.path()));
  } catch (const Error& error) {
    CHECK_THAT(error.what(), Says("loop.txt"));
    return;
  }
  CHECK(names == std::vector<std::string>{"config.json"});
}

TEST_CASE("A folder that may not be read, or not be searched, is left out with a note, the model's own is an error") {
  struct Row {
    Paths denied, come, notes;
  };
  const Row rows[] = {{{"lost+found", "sub/secret"},
                       {"config.json", "sub/vocab.txt", "zoo.txt"},
                       {"folders without read permission are left out: lost+found, sub/secret"}},
                      // A folder is not left out because one in it may not be read, whatever that is called, but
                      // "shards" makes a checkpoint by its name alone, and adapters are never a model's companions.
                      {{"serve/weights", "tuned/adapter_x", "epoch/shards"},
                       {"config.json", "serve/readme.txt", "tuned/notes.txt"},
                       {"a folder that is a separate checkpoint is left out: epoch",
                        "a folder without read permission is left out: serve/weights"}}};
  for (const Row& row : rows)
    for (const fs::perms denied : {fs::perms::none, fs::perms::owner_read, fs::perms::owner_exec}) {
      const TempDir temp;
      for (const std::string& name : row.come) write_file(temp / name, name);
      for (const std::string& folder : row.denied) write_file(temp / folder / "notes.txt", "");
      if (row.denied.back() == "epoch/shards") write_file(temp / "epoch/readme.txt", "");
      const Unprivileged nobody(temp.path());
      for (const std::string& folder : row.denied) fs::permissions(temp / folder, denied);
      const Companions found = companion_files(temp.path());
      CHECK(names_of(found) == row.come);
      CHECK(found.notes.texts() == row.notes);
      const Error error = error_of([&] { companion_files(temp / row.denied.front()); });
      CHECK(error.kind() == ErrorKind::kIo);
      CHECK(error.code() == std::errc::permission_denied);
      for (const std::string& folder : row.denied) fs::permissions(temp / folder, fs::perms::owner_all);
    }
}

TEST_CASE("A file that is no weights is copied whole, however large, and an empty one too") {
  const TempDir temp;
  const TinyModel model;
  Random random(1);
  write_model(temp / "model", model, random_tensors(model, random));
  std::string large(3'000'001, '\0');
  for (char& byte : large) byte = static_cast<char>(random());
  write_file(temp / "model/tokenizer.model", large);
  write_file(temp / "model/LICENSE", "");
  shard(shard_request(temp / "model", temp / "out"));
  CHECK((read_file(temp / "out/tokenizer.model") == large));
  CHECK(fs::file_size(temp / "out/LICENSE") == 0);
}

}  // namespace
}  // namespace reshard::test
