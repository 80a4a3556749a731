#include "reshard/io/memory_files.h"
#include "reshard/layouts/core/checkpoint.h"
#include "support/input.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// A tied model of two files, and shards of it.
struct Inspected : Input {
  Inspected() : Input({.layout = "ranks", .tp = 4, .pp = 2}, write) {}

  static TensorMap write(const fs::path& directory) {
    const TinyModel tiny{.tied = true};
    Random random(1);
    const TensorMap tensors = random_tensors(tiny, random);
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

TEST_CASE("A directory of PEFT is inspected as its one file, and shards of an adapter as a sharded checkpoint") {
  const TempDir temp;
  const fs::path golden = testdata("golden/lora/llama-tp2-two-adapters");
  const Checkpoint adapter = read_checkpoint(golden / "original", {ConfigUse::kLenient});
  CHECK(adapter.layout == nullptr);
  CHECK(adapter.path == golden / "original/adapter_model.safetensors");
  CHECK(adapter.map.logical.size() == 56);
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
