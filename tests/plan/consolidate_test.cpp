#include <nlohmann/json.hpp>

#include "reshard/io/memory_files.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/refusals.h"
#include "support/rewrite.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// A model sharded over tp 2 × pp 2.
class Sharded {
 public:
  explicit Sharded(const TinyModel& model = {}) {
    Random random(6);
    tensors = random_tensors(model, random);
    write_model(temp / "model", model, tensors);
    shard(shard_request(temp / "model", temp / "out", 2, 2));
  }
  ConsolidateRequest request(const fs::path& output = {}) const {
    ConsolidateRequest request;
    request.source.path = temp / "out";
    if (!output.empty()) request.output_directory = temp / output;
    return request;
  }
  fs::path rank_file(int tp_rank, int pp_rank) const {
    return temp / ("out/tensor_parallel_shards/tp_rank_0" + std::to_string(tp_rank) + "_pp_rank_0" +
                   std::to_string(pp_rank) + "/model.safetensors");
  }
  /// The error of planning with what is on disk, from a copy in memory.
  Error planning_error(const ConsolidateRequest& request) const {
    MemoryFiles files;
    load(files, temp.path());
    return error_of([&] { plan_consolidate(files, request); });
  }

  TempDir temp;
  TensorMap tensors;
};

TinyModel tied_model() {
  TinyModel model;
  model.tied = true;
  return model;
}

TEST_CASE("A checkpoint directory that is none is refused") {
  const TempDir temp;
  write_file(temp / "file", "");
  fs::create_directories(temp / "empty");
  ConsolidateRequest request;
  for (const char* name : {"nowhere", "file", "empty"}) {
    request.source.path = temp / name;
    check_refused([&] { plan_consolidate(request); }, {.path = temp / name});
  }
}

TEST_CASE("An output directory inside the shards folder is refused, at any depth") {
  const Sharded sharded;
  for (const char* name :
       {"", "tp_rank_00_pp_rank_00", "whole", "tp_rank_00_pp_rank_00/whole", "../tensor_parallel_shards/x/y"}) {
    INFO(name);
    check_error(sharded.planning_error(sharded.request(fs::path("out/tensor_parallel_shards") / name)),
                {.kind = ErrorKind::kUsage});
  }
}

TEST_CASE("An output directory that is merely called like a rank is no rank") {
  const Sharded sharded;
  CHECK_NOTHROW(plan_consolidate(sharded.request("tp_rank_00_pp_rank_00")));
}

TEST_CASE("Weights of another checkpoint in the output directory are refused, even with force") {
  for (const char* leftover : {"model-00001-of-00002.safetensors", "model.safetensors.index.json"}) {
    INFO(leftover);
    const Sharded sharded;
    write_file(sharded.temp / "whole" / leftover, "old");
    ConsolidateRequest request = sharded.request("whole");
    request.force = true;
    check_error(sharded.planning_error(request), {.path = sharded.temp / "whole", .says = leftover});
  }
  const Sharded sharded;
  write_file(sharded.temp / "whole/model.safetensors", "old");
  ConsolidateRequest request = sharded.request("whole");
  request.force = true;
  request.target.options.set_number("max-shard-size", 4000);  // several files: the single one would stay
  CHECK_THAT(sharded.planning_error(request).what(), Says("model.safetensors"));
}

TEST_CASE("Tied copies that are equal are compared and left out") {
  const Sharded sharded(tied_model());
  TensorMap last = read_tensors(sharded.rank_file(1, 1));
  REQUIRE(last.count("lm_head.weight") == 1);
  const auto job = plan_consolidate(sharded.request("whole"));
  // lm_head and the embedding's own copy on the last stage, and rank 1's five norms of 16 elements.
  const std::uint64_t embedding_bytes = sharded.tensors.at("model.embed_tokens.weight").bytes.size();
  CHECK(job->program.check_bytes == 2 * embedding_bytes + 5 * 16 * 2);
  bool noted = false;
  for (const std::string& note : job->notes) noted = noted || note.find("lm_head.weight is tied to ") == 0;
  CHECK(noted);
  execute(*job, unsynced());
  CHECK((read_model(sharded.temp / "whole") == sharded.tensors));
}

TEST_CASE("Tied copies that differ are an error that names the element, and nothing is written") {
  const Sharded sharded(tied_model());
  TensorMap last = read_tensors(sharded.rank_file(1, 1));
  last.at("lm_head.weight").bytes[2 * (5 * 16 + 3) + 1] ^= 1;  // row 5 of rank 1's 16 is row 21
  rewrite_safetensors(sharded.rank_file(1, 1), last);
  const auto before = snapshot(sharded.temp.path());
  for (const unsigned threads : {1u, 3u}) {
    RunOptions options;
    options.threads = threads;
    check_refused([&] { consolidate(sharded.request("deep/whole"), options); },
                  {.path = sharded.rank_file(1, 1),
                   .tensor = "lm_head.weight",
                   .says = {"a replica of model.embed_tokens.weight", "[21, 3]"}});
    CHECK((snapshot(sharded.temp.path()) == before));
  }
}

TEST_CASE("A head that config.json ties is stored once if it equals the embedding, and else a tensor of its own") {
  const TempDir temp;
  const TinyModel model = tied_model();
  Random random(6);
  TensorMap tensors = random_tensors(model, random);
  tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"];
  write_model(temp / "model", model, tensors, 3);
  CHECK_FALSE(plan_shard(shard_request(temp / "model", temp / "out", 2))->source.find_logical("lm_head.weight"));
  tensors["lm_head.weight"].bytes.back() ^= 1;
  write_model(temp / "model", model, tensors, 3);
  const auto job = plan_shard(shard_request(temp / "model", temp / "out", 2));
  CHECK(job->source.find_logical("lm_head.weight"));
  CHECK_THAT(job->notes.front(), Says("lm_head.weight differs from model.embed_tokens.weight, so both are kept"));
}

TEST_CASE("Without config.json, or of an unknown family, the metadata is enough and this is noted") {
  TinyModel model;
  model.layers = 12;  // layer 10 comes after layer 9, not after layer 1
  const Sharded sharded(model);
  write_file(sharded.temp / "out/config.json", R"({"model_type": "unheard_of"})");
  const auto unknown = plan_consolidate(sharded.request("whole"));
  REQUIRE(unknown->notes.size() == 1);
  CHECK_THAT(unknown->notes[0], Says("\"unheard_of\" is not known"));
  fs::remove(sharded.temp / "out/config.json");
  const auto without = plan_consolidate(sharded.request("whole"));
  REQUIRE(without->notes.size() == 1);
  CHECK_THAT(without->notes[0], Says("there is no config.json"));
  std::vector<std::string> layers;
  for (const LogicalTensor& tensor : without->source.logical)
    if (tensor.name.ends_with("input_layernorm.weight")) layers.push_back(tensor.name);
  REQUIRE(layers.size() == 12);
  CHECK(layers[1] == "model.layers.1.input_layernorm.weight");
  CHECK(layers[10] == "model.layers.10.input_layernorm.weight");
  execute(*without, unsynced());
  CHECK((read_model(sharded.temp / "whole") == sharded.tensors));
}

TEST_CASE("A config.json of another model is noticed") {
  const Sharded sharded;
  TinyModel other;
  other.layers = 3;
  write_file(sharded.temp / "out/config.json", other.config().dump());
  check_error(sharded.planning_error(sharded.request("whole")),
              {.says = "num_hidden_layers is 3 in config.json, but the files have layers 0 to 1"});
  other.layers = 1;
  write_file(sharded.temp / "out/config.json", other.config().dump());
  CHECK_THAT(sharded.planning_error(sharded.request("whole")).what(),
             Says("num_hidden_layers is 1 in config.json, but the files have layers 0 to 1"));
  other.layers = 2;
  other.hidden = 8;
  write_file(sharded.temp / "out/config.json", other.config().dump());
  CHECK_THAT(sharded.planning_error(sharded.request("whole")).what(), Says("asks for"));
}

TEST_CASE("A shards folder that is a link belongs to the directory that was given") {
  const Sharded sharded;
  fs::create_directories(sharded.temp / "elsewhere");
  fs::rename(sharded.temp / "out/tensor_parallel_shards", sharded.temp / "elsewhere/ranks");
  fs::create_directory_symlink("../elsewhere/ranks", sharded.temp / "out/tensor_parallel_shards");
  const auto job = plan_consolidate(sharded.request());
  CHECK(fs::weakly_canonical(job->output_directory) == fs::weakly_canonical(sharded.temp / "out"));
  CHECK(job->family == "llama");  // of the config.json that stands there
}

TEST_CASE("The companions of a checkpoint come along into another directory, the shards' own files do not") {
  const Sharded sharded;
  write_file(sharded.temp / "out/tokenizer/vocab.txt", "a b");
  fs::rename(sharded.temp / "out/tensor_parallel_shards", sharded.temp / "out/ranks");
  ConsolidateRequest request = sharded.request("whole");
  request.source.path = sharded.temp / "out/ranks";
  consolidate(request);
  const auto whole = snapshot(sharded.temp / "whole");
  std::vector<std::string> names;
  for (const auto& [name, content] : whole) names.push_back(name);
  CHECK(names == std::vector<std::string>{"config.json", "model.safetensors", "tokenizer/", "tokenizer/vocab.txt"});
}

TEST_CASE("Consolidating twice into a folder of the checkpoint does not copy the first result") {
  const Sharded sharded;
  consolidate(sharded.request("out/whole"));
  ConsolidateRequest again = sharded.request("out/whole");
  again.force = true;
  consolidate(again);
  CHECK(fs::exists(sharded.temp / "out/whole/model.safetensors"));
  CHECK_FALSE(fs::exists(sharded.temp / "out/whole/whole"));
}

TEST_CASE("The plan says what it will do") {
  const Sharded sharded;
  const auto job = plan_consolidate(sharded.request("whole"));
  CHECK(job->command == "consolidate");
  CHECK(job->mesh.tp == 2);
  CHECK(job->mesh.pp == 2);
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : sharded.tensors) bytes += tensor.bytes.size();
  CHECK(job->program.write_bytes == bytes);
  CHECK(job->program.read_bytes == bytes);
  CHECK(job->program.check_bytes == 5 * 16 * 2);  // rank 1's copies of the norms
  const RunResult result = execute(*job, unsynced());
  CHECK(result.files == 2);
  std::uint64_t on_disk = 0;
  for (const auto& [name, content] : snapshot(sharded.temp / "whole")) on_disk += content.size();
  CHECK(result.written_bytes == on_disk);
  CHECK(job->output_bytes() == on_disk);
}

/// Flips one byte of a tensor in a rank's file.
void spoil(const fs::path& file, const std::string& tensor) {
  TensorMap tensors = read_tensors(file);
  for (char& byte : tensors.at(tensor).bytes) byte = static_cast<char>(byte ^ 0x80);  // other signs: no drift
  rewrite_safetensors(file, tensors);
}

TEST_CASE("A replica that differs from the others is an error and nothing is written") {
  const Sharded sharded(tied_model());
  const std::pair<fs::path, const char*> replicas[] = {
      {sharded.rank_file(1, 0), "model.layers.0.input_layernorm.weight"},
      {sharded.rank_file(0, 1), "model.embed_tokens.weight"},
      {sharded.rank_file(1, 1), "lm_head.weight"}};
  for (const auto& [file, tensor] : replicas) {
    INFO(tensor);
    const std::string intact = read_file(file);
    spoil(file, tensor);
    const auto before = snapshot(sharded.temp.path());
    check_refused([&] { consolidate(sharded.request("whole")); },
                  {.path = file, .tensor = tensor, .says = "first at element ["});
    CHECK((snapshot(sharded.temp.path()) == before));
    write_file(file, intact);
  }
  CHECK_NOTHROW(consolidate(sharded.request("whole")));
}

TEST_CASE("Without config.json nothing of the directory above the shards is copied") {
  const Sharded sharded;
  fs::remove(sharded.temp / "out/config.json");
  write_file(sharded.temp / "out/diary.txt", "private");
  const auto job = plan_consolidate(sharded.request("whole"));
  CHECK(job->copied_files.empty());
}

}  // namespace
}  // namespace reshard::test
