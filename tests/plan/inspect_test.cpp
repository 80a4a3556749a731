#include "reshard/io/memory_files.h"
#include "reshard/layouts/core/checkpoint.h"
#include "support/input.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/torch_files.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// A tied model of two files, and shards of it.
struct Inspected : Input {
  Inspected() : Input({.layout = "ranks", .tp = 4, .pp = 2}, write) {}

  static TensorMap write(const fs::path& directory) {
    const TinyModel tiny{.tied = true};
    Random random(1);
    TensorMap tensors = random_tensors(tiny, random);
    write_model(directory, tiny, tensors, 2);
    return tensors;
  }
  /// What inspecting a copy in memory finds.
  Checkpoint inspect(const fs::path& relative) const {
    MemoryFiles files;
    load(files, temp.path());
    return read_checkpoint(files, temp / relative, {ConfigUse::kLenient});
  }
};

TEST_CASE("A Hugging Face directory is inspected in state-dict order") {
  const Inspected model;
  const auto inspection = model.inspect("model");
  CHECK(inspection.layout == layout("hf"));
  CHECK(inspection.model_type == "llama");
  CHECK(inspection.map.files.size() == 2);
  REQUIRE(inspection.map.logical.size() == model.tensors.size());
  CHECK(inspection.map.logical.front().name == "model.embed_tokens.weight");
  CHECK(inspection.map.logical.back().name == "model.norm.weight");
  CHECK(inspection.notes.empty());
}

TEST_CASE("A file alone is inspected without a model") {
  const Inspected model;
  const auto inspection = model.inspect("out/tensor_parallel_shards/tp_rank_03_pp_rank_01/model.safetensors");
  CHECK(inspection.layout == nullptr);
  CHECK(inspection.map.files.size() == 1);
  REQUIRE(inspection.file_metadata.size() == 5);  // and which rank it is of
  CHECK(inspection.file_metadata[0] == std::pair<std::string, std::string>("format", "pt"));
}

TEST_CASE("Ranks are inspected as what they are parts of, from the folder or its parent") {
  const Inspected model;
  for (const char* path : {"out", "out/tensor_parallel_shards"}) {
    const auto inspection = model.inspect(path);
    CHECK(inspection.has_ranks());
    CHECK(inspection.mesh.tp == 4);
    CHECK(inspection.mesh.pp == 2);
    REQUIRE(inspection.map.logical.size() == model.tensors.size());
    for (const LogicalTensor& tensor : inspection.map.logical)
      CHECK(tensor.shape == model.tensors.at(tensor.name).shape);
  }
}

TEST_CASE("A directory with both says so") {
  const Inspected model;
  consolidate(consolidate_request(model / "out", model / "out"));
  const auto inspection = model.inspect("out");
  CHECK(inspection.layout == layout("hf"));
  REQUIRE(inspection.notes.size() == 1);
  CHECK_THAT(inspection.notes[0], Says("also a sharded checkpoint"));
}

TEST_CASE("What cannot be inspected is refused with its path") {
  const Inspected model;
  fs::create_directories(model / "empty");
  write_file(model / "bin/pytorch_model.bin", "PK");
  for (const auto& [name, path] :
       {std::pair("nowhere", "nowhere"), {"empty", "empty"}, {"bin", "bin/pytorch_model.bin"}})
    check_refused([&, relative = name] { model.inspect(relative); }, {.path = model / path});
}

TEST_CASE("A config.json that cannot be used is noted and does not keep one from looking") {
  const Inspected model;
  write_file(model / "model/config.json", R"({"model_type": "llama", "hidden_size": "many"})");
  const auto inspection = model.inspect("model");
  CHECK(inspection.map.logical.size() == model.tensors.size());
  REQUIRE(inspection.notes.size() == 1);
  CHECK_THAT(inspection.notes[0], Says("config.json"));
}

TEST_CASE("Adapters of earlier steps next to one are not read, with a note, and adapters in folders alone are") {
  MemoryFiles files;
  const std::string weights = safetensors_bytes({{"base_model.model.q.lora_A.weight", {DType::kU8, {1, 1}, "x"}}});
  const auto add = [&](const fs::path& directory) {
    files.write(directory / "adapter_model.safetensors", weights);
    files.write(directory / "adapter_config.json", R"({"peft_type": "LORA", "r": 1})");
  };
  add("run");
  add("run/checkpoint-5");
  const Checkpoint run = read_checkpoint(files, "run", {ConfigUse::kLenient});
  CHECK(run.adapters.size() == 1);
  CHECK(run.notes.texts() == std::vector<std::string>{"left out the adapters of earlier steps: checkpoint-5"});
  add("run/other");
  const Checkpoint two = read_checkpoint(files, "run", {ConfigUse::kLenient});
  CHECK(two.adapters.size() == 2);
  CHECK(two.notes == run.notes);
  add("both/a");
  add("both/b");
  CHECK(read_checkpoint(files, "both", {ConfigUse::kLenient}).adapters.size() == 2);
}

TEST_CASE("Ranks that nothing explains are inspected as they are stored, and not compared or converted") {
  const Inspected model;
  fs::remove(model / "out/config.json");
  for (const auto& entry : fs::recursive_directory_iterator(model / "out"))
    if (entry.path().filename().string().starts_with("mp_metadata")) fs::remove(entry.path());
  const auto inspection = model.inspect("out");
  CHECK(inspection.mesh.tp == 4);
  CHECK(inspection.mesh.pp == 2);
  REQUIRE(inspection.unexplained);
  CHECK_THAT(inspection.unexplained->what(), Says("no config.json of a known family"));
  REQUIRE(inspection.map.find_logical("pp.0.tp.3.model.layers.0.mlp.down_proj.weight"));
  const LogicalTensor& tensor =
      inspection.map.logical[*inspection.map.find_logical("pp.0.tp.3.model.layers.0.mlp.down_proj.weight")];
  CHECK(tensor.shape == Dims{16, 6});
  const auto says = [](const std::string& note) { return note.find("shown as they are stored") != note.npos; };
  CHECK(std::count_if(inspection.notes.begin(), inspection.notes.end(), says) == 1);
  check_refused([&] { read_checkpoint(model / "out", {ConfigUse::kStrict}); }, {.says = "its partition is unknown"});
}

TEST_CASE("A directory of PEFT is inspected with all of its adapters, and shards of one as a sharded checkpoint") {
  const TempDir temp;
  const fs::path golden = testdata("golden/lora/llama-tp2-two-adapters");
  const Checkpoint both = read_checkpoint(golden / "original", {ConfigUse::kLenient});
  CHECK(both.layout == nullptr);
  CHECK(both.path == golden / "original");
  REQUIRE(both.adapters.size() == 2);
  CHECK(both.adapters[1].prefix == "test/");
  CHECK(both.map.logical.size() == 112);
  for (const char* folder : {"a", "b"}) {
    write_file(temp / folder / "adapter_config.json", "{}");
    write_torch(temp / folder / "adapter_model.bin", {{"base_model.model.q.lora_A.weight", {DType::kU8, {1, 1}, "x"}}});
  }
  CHECK(read_checkpoint(temp.path(), {ConfigUse::kLenient}).format == Format::kPytorch);
  const Checkpoint adapter = read_checkpoint(golden / "original/test", {ConfigUse::kLenient});
  CHECK(adapter.path == golden / "original/test/adapter_model.safetensors");
  CHECK(adapter.map.logical.size() == 56);
  fs::copy(golden / "original/test", temp / "run", fs::copy_options::recursive);
  write_file(temp / "run/backup/adapter_config.json", "{}");  // is no adapter of this directory
  CHECK(read_checkpoint(temp / "run", {ConfigUse::kLenient}).map.logical.size() == 56);
  const auto* path = GENERATE("sharded/adapter_test", "sharded/adapter_test/adapter_shards");
  const Checkpoint sharded = read_checkpoint(golden / path, {ConfigUse::kLenient});
  CHECK(sharded.layout == layout("optimum"));
  CHECK(sharded.path == golden / "sharded/adapter_test/adapter_shards");
  CHECK(sharded.directory == golden / "sharded/adapter_test");
  CHECK(sharded.map.tensor_count() == 56);
  CHECK(sharded.notes.empty());
}

}  // namespace
}  // namespace reshard::test
