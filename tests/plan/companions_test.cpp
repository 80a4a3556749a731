#include "support/catch.h"
#include "support/errors.h"
#include "support/models.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> companions(const fs::path& directory) {
  std::vector<std::string> names;
  for (const CopiedFile& file : companion_files(directory)) names.push_back(file.path.string());
  return names;
}

TEST_CASE("Everything that belongs to the model comes along, in sorted order, folders and all") {
  const TempDir temp;
  for (const char* name : {"tokenizer.json", "config.json", "README.md", "sub/deep/vocab.txt", "training_args.bin",
                           "tokenizer.model", "generation_config.json"})
    write_file(temp / name, name);
  fs::create_directories(temp / "empty");
  CHECK(companions(temp.path()) == std::vector<std::string>{"README.md", "config.json", "generation_config.json",
                                                            "sub/deep/vocab.txt", "tokenizer.json", "tokenizer.model",
                                                            "training_args.bin"});
  for (const CopiedFile& file : companion_files(temp.path())) {
    CHECK(file.size_bytes == file.path.filename().string().size() + (file.path.has_parent_path() ? 9 : 0));
    CHECK(fs::equivalent(file.source, temp / file.path));
  }
}

TEST_CASE("Weights of any format and indexes of weights stay behind") {
  const TempDir temp;
  for (const char* name : {"model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json",
                           "pytorch_model.bin", "pytorch_model.bin.index.json", "x.pt", "x.pth", "x.ckpt",
                           "tf_model.h5", "flax_model.msgpack", "x.gguf", "onnx/model.onnx"})
    write_file(temp / name, name);
  CHECK(companions(temp.path()).empty());
}

TEST_CASE("Hidden files, training checkpoints, adapters and shards stay behind") {
  const TempDir temp;
  for (const char* name :
       {".gitattributes", ".git/config", ".cache/x/y.json", "checkpoint-500/config.json",
        "adapter_default/adapter_config.json", "shards/mp_metadata_pp_rank_0.json",
        "tensor_parallel_shards/mp_metadata_pp_rank_0.json", "tp_rank_00_pp_rank_00/notes.txt", "trn_config.json"})
    write_file(temp / name, name);
  write_file(temp / "checkpoint.txt", "");
  CHECK(companions(temp.path()) == std::vector<std::string>{"checkpoint.txt"});
}

TEST_CASE("Checkpoints of the training run stay behind whatever their names, and so do the marks of a save") {
  const TempDir temp;
  const std::string rank = "model/dp_rank_00_tp_rank_00_pp_rank_00.pt";
  for (const std::string& name :
       {"step_3/" + rank, std::string("step_3/checkpoint"), std::string("step_3/done"), "any/" + rank,
        std::string("any/done"), std::string("any/user.json"), std::string("epoch_1/model.safetensors"),
        std::string("epoch_1/config.json"), rank, std::string("checkpoint"), std::string("done"),
        std::string("optim/__0_0.distcp"), std::string("latest"), std::string("config.json"),
        std::string("docs/latest"), std::string("docs/done"), std::string("epoch_2/picture.png")})
    write_file(temp / name, "x");
  CHECK(companions(temp.path()) ==
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
  const auto files = companion_files(temp / "model");
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
    names = companions(temp.path());
  } catch (const Error& error) {
    CHECK_THAT(error.what(), Says("loop.txt"));
    return;
  }
  CHECK(names == std::vector<std::string>{"config.json"});
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
