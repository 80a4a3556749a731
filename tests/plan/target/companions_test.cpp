#include "reshard/io/local_storage.h"
#include "reshard/io/memory_files.h"
#include "support/catch.h"
#include "support/errors.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/temp_dir.h"
#include "support/unprivileged.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> companions(Files& files, const fs::path& directory) {
  std::vector<std::string> names;
  for (const CopiedFile& file : companion_files(files, directory).files) names.push_back(file.path.string());
  return names;
}

TEST_CASE("Everything that belongs to the model comes along, in sorted order, folders and all") {
  MemoryFiles files;
  const fs::path temp = "m";
  for (const char* name : {"tokenizer.json", "config.json", "README.md", "sub/deep/vocab.txt", "training_args.bin",
                           "tokenizer.model", "generation_config.json"})
    files.write(temp / name, name);
  files.make_directory(temp / "empty");
  CHECK(companions(files, temp) == std::vector<std::string>{"README.md", "config.json", "generation_config.json",
                                                            "sub/deep/vocab.txt", "tokenizer.json", "tokenizer.model",
                                                            "training_args.bin"});
  for (const CopiedFile& file : companion_files(files, temp).files) {
    CHECK(file.size_bytes == file.path.filename().string().size() + (file.path.has_parent_path() ? 9 : 0));
    CHECK(file.source == temp / file.path);
  }
}

TEST_CASE("Weights of any format and indexes of weights stay behind") {
  MemoryFiles files;
  const fs::path temp = "m";
  for (const char* name :
       {"model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json",
        "model.fp16.safetensors", "model.safetensors.index.fp16.json", "pytorch_model.bin.index.bf16.json",
        "pytorch_model.bin", "pytorch_model.bin.index.json", "x.pt", "x.pth", "x.ckpt", "tf_model.h5",
        "flax_model.msgpack", "x.gguf", "weights.npz", "rust_model.ot", "onnx/model.onnx"})
    files.write(temp / name, name);
  CHECK(companions(files, temp).empty());
}

TEST_CASE("Lists of digests stay behind, and signatures of these, of weights and of the whole directory") {
  MemoryFiles files;
  const fs::path temp = "m";
  for (const char* name : {"SHA256SUMS", "SHA256SUMS.sig", "SHA256SUMS.asc", "reshard.manifest.json",
                           "reshard.manifest.json.sigstore.json", "model.sig", "model.safetensors.sig",
                           "sub/SHA256SUMS.minisig", "README.md", "README.md.asc", "x.sig"})
    files.write(temp / name, name);
  CHECK(companions(files, temp) == std::vector<std::string>{"README.md", "README.md.asc", "x.sig"});
}

TEST_CASE("Links are followed, and those that lead nowhere are noted by name") {
  const TempDir temp;
  write_file(temp / "elsewhere.json", "{}");
  fs::create_directories(temp / "model/sub");
  fs::create_symlink(temp / "elsewhere.json", temp / "model/tokenizer.json");
  fs::create_symlink(temp / "gone", temp / "model/vocab.json");
  fs::create_symlink(temp / "gone", temp / "model/sub/merges.txt");
  fs::create_symlink(temp / "gone", temp / "model/old.safetensors");
  const Companions found = companion_files(local_storage(), temp / "model");
  REQUIRE(found.files.size() == 1);
  CHECK(found.files[0].path == "tokenizer.json");
  CHECK(found.notes ==
        std::vector<std::string>{"links that lead nowhere are left out: old.safetensors, sub/merges.txt, vocab.json"});
}

TEST_CASE("Hidden files, training checkpoints, adapters and shards stay behind") {
  MemoryFiles files;
  const fs::path temp = "m";
  for (const char* name :
       {".gitattributes", ".git/config", ".cache/x/y.json", "checkpoint-500/config.json",
        "adapter_default/adapter_config.json", "shards/mp_metadata_pp_rank_0.json",
        "tensor_parallel_shards/mp_metadata_pp_rank_0.json", "tp_rank_00_pp_rank_00/notes.txt", "trn_config.json"})
    files.write(temp / name, name);
  files.write(temp / "checkpoint.txt", "");
  CHECK(companions(files, temp) == std::vector<std::string>{"checkpoint.txt"});
}

TEST_CASE("Checkpoints of the training run stay behind whatever their names, and so do the marks of a save") {
  MemoryFiles files;
  const fs::path temp = "m";
  const std::string rank = "model/dp_rank_00_tp_rank_00_pp_rank_00.pt";
  for (const std::string& name :
       {"step_3/" + rank, std::string("step_3/checkpoint"), std::string("step_3/done"), "any/" + rank,
        std::string("any/done"), std::string("any/user.json"), std::string("epoch_1/model.safetensors"),
        std::string("epoch_1/config.json"), rank, std::string("checkpoint"), std::string("done"),
        std::string("optim/__0_0.distcp"), std::string("latest"), std::string("config.json"),
        std::string("docs/latest"), std::string("docs/done"), std::string("epoch_2/picture.png")})
    files.write(temp / name, "x");
  CHECK(companions(files, temp) ==
        std::vector<std::string>{"config.json", "docs/done", "docs/latest", "epoch_2/picture.png"});
}

TEST_CASE("Linked files are followed, linked folders are not, links to nowhere are passed over") {
  const TempDir temp;
  write_file(temp / "blobs/abc", "{\"x\": 1}");
  write_file(temp / "elsewhere/file.txt", "");
  fs::create_directories(temp / "model");
  fs::create_symlink("../blobs/abc", temp / "model/config.json");
  fs::create_directory_symlink("../elsewhere", temp / "model/linked");
  fs::create_directory_symlink(".", temp / "model/itself");
  fs::create_symlink("nowhere", temp / "model/dangling.txt");
  const auto files = companion_files(temp / "model").files;
  REQUIRE(files.size() == 1);
  CHECK(files[0].path == "config.json");
  CHECK(files[0].size_bytes == 8);
}

TEST_CASE("A link to itself is passed over, or an Error: nothing else is thrown") {
  const TempDir temp;
  write_file(temp / "config.json", "{}");
  fs::create_symlink("loop.txt", temp / "loop.txt");
  std::vector<std::string> names;
  try {
    names = companions(local_storage(), temp.path());
  } catch (const Error& error) {
    CHECK_THAT(error.what(), Says("loop.txt"));
    return;
  }
  CHECK(names == std::vector<std::string>{"config.json"});
}

TEST_CASE("Folders that are checkpoints of their own stay behind with all they hold, and one note names them") {
  MemoryFiles files;
  const fs::path temp = "m";
  for (const std::string name : {"config.json",
                                 "half/config.json",
                                 "half/model.safetensors",
                                 "half/tokenizer.json",
                                 "runs/big/config.json",
                                 "runs/big/pytorch_model-00001-of-00002.bin",
                                 "runs/notes.txt",
                                 "index/model.safetensors.index.json",
                                 "variant/pytorch_model.bin.index.fp16.json",
                                 "index/tokenizer.json",
                                 "ranks/config.json",
                                 "ranks/tensor_parallel_shards/tp_rank_00_pp_rank_00/model.safetensors",
                                 "renamed/tp_rank_00_pp_rank_00/model.safetensors",
                                 "renamed/mp_metadata_pp_rank_0.json",
                                 "optimum/config.json",
                                 "optimum/shards/model/dp_rank_00_tp_rank_00_pp_rank_00.pt",
                                 "serve/config.json",
                                 "serve/weights/tp0_sharded_checkpoint.safetensors",
                                 "nxd/config.json",
                                 "nxd/model/dp_rank_00_tp_rank_00_pp_rank_00.pt",
                                 "step_1/model/rank.pt",
                                 "step_1/optim/rank.pt",
                                 "step_1/user_content.json",
                                 "step_2/checkpoint",
                                 "step_2/done",
                                 "step_2/optim/rank.pt",
                                 "step_2/user_content.json",
                                 "checkpoint-5/trainer_state.json",
                                 "lora/adapter_config.json",
                                 "lora/adapter_model.safetensors"})
    files.write(temp / name, name);
  const Companions found = companion_files(files, temp);
  std::vector<std::string> names;
  for (const CopiedFile& file : found.files) names.push_back(file.path.string());
  CHECK(names == std::vector<std::string>{"config.json", "runs/notes.txt"});
  REQUIRE(found.notes.size() == 1);
  CHECK_THAT(found.notes[0], Says("left out"));
  for (const char* folder : {"checkpoint-5", "half", "index", "lora", "nxd", "optimum", "ranks", "renamed", "runs/big",
                             "serve", "step_1", "step_2"})
    CHECK_THAT(found.notes[0], Says(folder));
}

TEST_CASE("Folders that belong to a model come along, without weights, though some look a little like checkpoints") {
  MemoryFiles files;
  const fs::path temp = "m";
  for (const char* name :
       {"config.json", "1_Pooling/config.json", "original/params.json", "original/consolidated.00.pth",
        "original/tokenizer.model", "onnx/config.json", "onnx/model.onnx", "assets/config.json",
        "assets/training_args.bin", "done/model/readme.txt", "scripts/checkpoint"})
    files.write(temp / name, name);
  const Companions found = companion_files(files, temp);
  std::vector<std::string> names;
  for (const CopiedFile& file : found.files) names.push_back(file.path.string());
  CHECK(names == std::vector<std::string>{"1_Pooling/config.json", "assets/config.json", "assets/training_args.bin",
                                          "config.json", "done/model/readme.txt", "onnx/config.json",
                                          "original/params.json", "original/tokenizer.model", "scripts/checkpoint"});
  CHECK(found.notes.empty());
}

TEST_CASE("The checkpoint that is read and the one that is written stay behind without a note") {
  MemoryFiles files;
  const fs::path temp = "m";
  for (const char* name : {"config.json", "step_9/model/dp_rank_00_tp_rank_00_pp_rank_00.pt", "step_9/done",
                           "out/half/config.json", "out/half/model.safetensors"})
    files.write(temp / name, name);
  const Companions found = companion_files(files, temp, {temp / "step_9/model", temp / "out/half"});
  CHECK(found.files.size() == 1);
  CHECK(found.notes.empty());
}

TEST_CASE("A model converted into folders of its own directory is not copied into the next output") {
  MemoryFiles files;
  const fs::path temp = "m";
  const TinyModel model;
  Random random(1);
  write_model(files, temp / "m", model, random_tensors(model, random));
  write_model(files, temp / "m/half", model, random_tensors(model, random));
  files.write(temp / "m/tokenizer.json", "{}");
  const auto job = plan_shard(files, shard_request(temp / "m", temp / "out"));
  CHECK(job->copied_files.size() == 2);
  REQUIRE(job->notes.size() == 2);
  CHECK_THAT(job->notes[0] + job->notes[1], Says("half"));
}

TEST_CASE("A folder that may not be read, or not be searched, is left out with a note, the model's own is an error") {
  for (const fs::perms denied : {fs::perms::none, fs::perms::owner_read, fs::perms::owner_exec}) {
    const TempDir temp;
    for (const char* name : {"config.json", "lost+found/deep/file.txt", "lost+found/a.txt", "sub/secret/key.txt",
                             "sub/vocab.txt", "zoo.txt"})
      write_file(temp / name, name);
    const Unprivileged nobody(temp.path());
    for (const char* folder : {"lost+found", "sub/secret"}) fs::permissions(temp / folder, denied);
    const Companions found = companion_files(temp.path());
    std::vector<std::string> names;
    for (const CopiedFile& file : found.files) names.push_back(file.path.string());
    CHECK(names == std::vector<std::string>{"config.json", "sub/vocab.txt", "zoo.txt"});
    REQUIRE(found.notes.size() == 1);
    CHECK_THAT(found.notes[0], Says("may not be read"));
    CHECK_THAT(found.notes[0], Says("lost+found, sub/secret"));
    const Error error = error_of([&] { companion_files(temp / "lost+found"); });
    CHECK(error.kind() == ErrorKind::kIo);
    CHECK(error.code() == std::errc::permission_denied);
    for (const char* folder : {"lost+found", "sub/secret"}) fs::permissions(temp / folder, fs::perms::owner_all);
  }
}

TEST_CASE("A folder is not left out because one in it may not be read, whatever that is called") {
  for (const fs::perms denied : {fs::perms::none, fs::perms::owner_read, fs::perms::owner_exec}) {
    const TempDir temp;
    for (const char* name : {"config.json", "serve/readme.txt", "serve/weights/vocab.txt", "tuned/notes.txt",
                             "tuned/adapter_x/notes.txt", "epoch/readme.txt", "epoch/shards/notes.txt"})
      write_file(temp / name, name);
    const Unprivileged nobody(temp.path());
    const auto folders = {"serve/weights", "tuned/adapter_x", "epoch/shards"};
    for (const char* folder : folders) fs::permissions(temp / folder, denied);
    const Companions found = companion_files(temp.path());
    std::vector<std::string> names;
    for (const CopiedFile& file : found.files) names.push_back(file.path.string());
    CHECK(names == std::vector<std::string>{"config.json", "serve/readme.txt", "tuned/notes.txt"});
    // "shards" makes a checkpoint by its name alone, and adapters are never a model's companions.
    CHECK(found.notes == std::vector<std::string>{"a folder that is a checkpoint of its own is left out: epoch",
                                                  "a folder that may not be read is left out: serve/weights"});
    for (const char* folder : folders) fs::permissions(temp / folder, fs::perms::owner_all);
  }
}

TEST_CASE("Sharding twice into a folder of the model does not copy the first result") {
  const TempDir temp;
  const TinyModel model;
  Random random(1);
  write_model(temp / "model", model, random_tensors(model, random));
  ShardRequest request = shard_request(temp / "model", temp / "model/sharded", 2);
  shard(request);
  const auto first = snapshot(temp / "model/sharded");
  request.force = true;
  shard(request);
  CHECK((snapshot(temp / "model/sharded") == first));
}

TEST_CASE("A file that is no weights is copied whole, however large, and an empty one too") {
  const TempDir temp;
  const TinyModel model;
  Random random(1);
  write_model(temp / "model", model, random_tensors(model, random));
  std::string large(3'000'001, '\0');
  for (char& byte : large) byte = static_cast<char>(random());
  write_file(temp / "model/tokenizer.model", large);
  write_file(temp / "model/empty.txt", "");
  shard(shard_request(temp / "model", temp / "out"));
  CHECK((read_file(temp / "out/tokenizer.model") == large));
  CHECK(fs::file_size(temp / "out/empty.txt") == 0);
}

}  // namespace
}  // namespace reshard::test
