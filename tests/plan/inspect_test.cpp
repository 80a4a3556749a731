#include "reshard/io/memory_files.h"
#include "reshard/layouts/core/checkpoint.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

class Model {
 public:
  Model() {
    TinyModel tiny;
    tiny.tied = true;
    Random random(1);
    tensors = random_tensors(tiny, random);
    write_model(temp / "model", tiny, tensors, 2);
    shard(shard_request(temp / "model", temp / "out", 4, 2));
  }
  /// What inspecting a copy in memory finds.
  Checkpoint inspect(const fs::path& path) const {
    MemoryFiles files;
    load(files, temp.path());
    return read_checkpoint(files, temp / path, {ConfigUse::kLenient});
  }

  TempDir temp;
  TensorMap tensors;
};

TEST_CASE("A Hugging Face directory is inspected in state-dict order") {
  const Model model;
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
  const Model model;
  const auto inspection = model.inspect("out/tensor_parallel_shards/tp_rank_03_pp_rank_01/model.safetensors");
  CHECK(inspection.layout == nullptr);
  CHECK(inspection.map.files.size() == 1);
  REQUIRE(inspection.file_metadata.size() == 5);  // and which rank it is of
  CHECK(inspection.file_metadata[0] == std::pair<std::string, std::string>("format", "pt"));
}

TEST_CASE("Ranks are inspected as what they are parts of, from the folder or its parent") {
  const Model model;
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
  const Model model;
  ConsolidateRequest request;
  request.source.path = model.temp / "out";
  consolidate(request);
  const auto inspection = model.inspect("out");
  CHECK(inspection.layout == layout("hf"));
  REQUIRE(inspection.notes.size() == 1);
  CHECK_THAT(inspection.notes[0], Says("also a sharded checkpoint"));
}

TEST_CASE("What cannot be inspected is refused with its path") {
  const Model model;
  CHECK(error_of([&] { model.inspect("nowhere"); }).kind() == ErrorKind::kBadInput);
  fs::create_directories(model.temp / "empty");
  check_refused([&] { model.inspect("empty"); }, {.path = model.temp / "empty"});
  write_file(model.temp / "bin/pytorch_model.bin", "PK");
  CHECK(error_of([&] { model.inspect("bin"); }).kind() == ErrorKind::kBadInput);
}

TEST_CASE("A config.json that cannot be used is noted and does not keep one from looking") {
  const Model model;
  write_file(model.temp / "model/config.json", R"({"model_type": "llama", "hidden_size": "many"})");
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
