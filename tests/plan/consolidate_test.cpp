#include <nlohmann/json.hpp>

#include "support/input.h"
#include "support/local_files.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// A model sharded over tp 2 × pp 2.
struct Sharded : Input {
  explicit Sharded(const TinyModel& tiny = {}) : Input(tiny, {.layout = "ranks", .tp = 2, .pp = 2}, 6) {}

  Request request(const fs::path& output, const RequestFields& fields = {}) const {
    return consolidate_request(path(), temp / output, fields);
  }
  /// The error of planning with what is on disk, from a copy in memory.
  void check_unplanned(const Request& request, const Refusal& refusal) const {
    MemoryFiles files;
    load(files, temp.path());
    check_refused([&] { plan_consolidate(files, request); }, refusal);
  }
};

TEST_CASE("A checkpoint directory that is none is refused") {
  const TempDir temp;
  write_file(temp / "file", "");
  fs::create_directories(temp / "empty");
  for (const char* name : {"nowhere", "file", "empty"})
    check_refused([&] { plan_consolidate(consolidate_request(temp / name, temp / "out")); }, {.path = temp / name});
}

TEST_CASE("An output directory that is merely called like a rank is no rank") {
  const Sharded sharded;
  CHECK_NOTHROW(plan_consolidate(sharded.request("tp_rank_00_pp_rank_00")));
}

TEST_CASE("Weights of another checkpoint in the output directory are refused, even with force") {
  for (const auto& [leftover, options] :
       {std::pair("model-00001-of-00002.safetensors", std::vector<std::string>()),
        {"model.safetensors.index.json", {}},
        {"model.safetensors", {"max-shard-size=4000"}}}) {  // of several files; the single one would stay
    INFO(leftover);
    const Sharded sharded;
    write_file(sharded / "whole" / leftover, "old");
    sharded.check_unplanned(sharded.request("whole", {.options = options, .force = true}),
                            {.path = sharded / "whole", .says = leftover});
  }
}

TEST_CASE("Tied copies that are equal are compared and left out") {
  const Sharded sharded({.tied = true});
  REQUIRE(read_tensors(sharded.rank_file(1, 1)).count("lm_head.weight") == 1);
  const auto job = plan_consolidate(sharded.request("whole"));
  // lm_head and the embedding's own copy on the last stage, and rank 1's five norms of 16 elements.
  const std::uint64_t embedding_bytes = sharded.tensors.at("model.embed_tokens.weight").bytes.size();
  CHECK(job->program.check_bytes == 2 * embedding_bytes + 5ull * 16 * 2);
  CHECK_THAT("\n" + joined_notes(*job), Says("\nlm_head.weight is tied to "));
  execute(*job, unsynced());
  CHECK((read_model(sharded / "whole") == sharded.tensors));
}

TEST_CASE("A tied copy or a replica that differs is an error that names the element, and nothing is written") {
  struct Row {
    std::uint32_t tp_rank, pp_rank;
    const char* tensor;
    std::size_t element;  // from which on signs are others, which is no drift
    Texts says;
  };
  const Row rows[] = {{1, 1, "lm_head.weight", 5 * 16 + 3, {"a replica of model.embed_tokens.weight", "[21, 3]"}},
                      {0, 1, "model.embed_tokens.weight", 0, "first at element [0, 0]"},
                      {1, 0, "model.layers.0.input_layernorm.weight", 3, "first at element [3]"}};
  for (const Row& row : rows) {
    const Sharded sharded({.tied = true});
    const fs::path file = sharded.rank_file(row.tp_rank, row.pp_rank);
    change_tensor(file, row.tensor, [&](std::string& bytes) {
      for (std::size_t at = 2 * row.element + 1; at < bytes.size(); at += 2) bytes[at] ^= static_cast<char>(0x80);
    });
    const auto before = snapshot(sharded.temp.path());
    for (const unsigned threads : {1u, 3u}) {
      RunOptions options;
      options.threads = threads;
      check_refused([&] { consolidate(sharded.request("deep/whole"), options); },
                    {.path = file, .tensor = row.tensor, .says = row.says});
      CHECK((snapshot(sharded.temp.path()) == before));
    }
  }
}

TEST_CASE("A head that config.json ties is stored once if it equals the embedding, and else a tensor of its own") {
  const TempDir temp;
  const TinyModel model{.tied = true};
  Random random(6);
  TensorMap tensors = random_tensors(model, random);
  tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"];
  for (const bool equal : {true, false}) {
    if (!equal) tensors["lm_head.weight"].bytes.back() ^= 1;
    write_model(temp / "model", model, tensors, 3);
    const auto job = plan_shard(shard_request(temp / "model", temp / "out", 2));
    CHECK(job->source.find_logical("lm_head.weight").has_value() != equal);
    if (!equal)
      CHECK_THAT(job->notes.front(), Says("lm_head.weight differs from model.embed_tokens.weight, so both are kept"));
  }
}

TEST_CASE("Without config.json, or of an unknown family, the metadata is enough and this is noted") {
  const Sharded sharded({.layers = 12});  // layer 10 comes after layer 9, not after layer 1
  write_file(sharded / "out/config.json", R"({"model_type": "unheard_of"})");
  write_file(sharded / "out/diary.txt", "private");
  write_file(sharded / "out/tokenizer.json", "{}");
  const auto unknown = plan_consolidate(sharded.request("whole"));
  REQUIRE(unknown->notes.size() == 2);
  CHECK_THAT(unknown->notes[0], Says("\"unheard_of\" is not known"));
  CHECK_THAT(unknown->notes[1], Says("not known to belong to the model: diary.txt"));
  fs::remove(sharded / "out/config.json");
  fs::remove(sharded / "out/tokenizer.json");
  const auto without = plan_consolidate(sharded.request("whole"));
  REQUIRE(without->notes.size() == 1);
  CHECK_THAT(without->notes[0], Says("there is no config.json"));
  CHECK(without->copied_files.empty());  // the directory above the shards is not known to be theirs
  std::vector<std::string> norms, expected;
  for (const LogicalTensor& tensor : without->source.logical)
    if (tensor.name.ends_with("input_layernorm.weight")) norms.push_back(tensor.name);
  for (int layer = 0; layer < 12; ++layer)
    expected.push_back("model.layers." + std::to_string(layer) + ".input_layernorm.weight");
  CHECK(norms == expected);
  execute(*without, unsynced());
  CHECK((read_model(sharded / "whole") == sharded.tensors));
}

TEST_CASE("A config.json of another model is noticed") {
  const Sharded sharded;
  for (const auto& [other, says] :
       {std::pair(TinyModel{.layers = 3}, "num_hidden_layers is 3 in config.json, but the files have layers 0 to 1"),
        {TinyModel{.layers = 1}, "num_hidden_layers is 1 in config.json, but the files have layers 0 to 1"},
        {TinyModel{.hidden = 8}, "asks for"}}) {
    write_file(sharded / "out/config.json", other.config().dump());
    sharded.check_unplanned(sharded.request("whole"), {.says = says});
  }
}

TEST_CASE("A shards folder that is a link belongs to the directory that was given") {
  const Sharded sharded;
  fs::create_directories(sharded / "elsewhere");
  fs::rename(sharded / "out/tensor_parallel_shards", sharded / "elsewhere/ranks");
  fs::create_directory_symlink("../elsewhere/ranks", sharded / "out/tensor_parallel_shards");
  Request in_place;
  in_place.source.path = sharded.path();
  const auto job = plan_consolidate(in_place);
  CHECK(fs::weakly_canonical(job->output_directory) == fs::weakly_canonical(sharded / "out"));
  CHECK(job->family == "llama");  // of the config.json that stands there
}

TEST_CASE("The companions of a checkpoint come along into another directory, the shards' own files do not") {
  const Sharded sharded;
  write_file(sharded / "out/tokenizer/vocab.txt", "a b");
  fs::rename(sharded / "out/tensor_parallel_shards", sharded / "out/ranks");
  consolidate(consolidate_request(sharded / "out/ranks", sharded / "whole"));
  std::vector<std::string> names;
  for (const auto& [name, content] : snapshot(sharded / "whole")) names.push_back(name);
  CHECK(names == std::vector<std::string>{"config.json", "model.safetensors", "tokenizer/", "tokenizer/vocab.txt"});
}

TEST_CASE("The plan says what it will do") {
  const Sharded sharded;
  const auto job = plan_consolidate(sharded.request("whole"));
  CHECK(job->command == "consolidate");
  CHECK(job->mesh.tp == 2);
  CHECK(job->mesh.pp == 2);
  std::uint64_t bytes = 0, on_disk = 0;
  for (const auto& [name, tensor] : sharded.tensors) bytes += tensor.bytes.size();
  CHECK(job->program.write_bytes == bytes);
  CHECK(job->program.read_bytes == bytes);
  CHECK(job->program.check_bytes == 5ull * 16 * 2);  // rank 1's copies of the norms
  const RunResult result = execute(*job, unsynced());
  CHECK(result.files == 2);
  for (const auto& [name, content] : snapshot(sharded / "whole")) on_disk += content.size();
  CHECK(result.written_bytes == on_disk);
  CHECK(job->output_bytes() == on_disk);
}

}  // namespace
}  // namespace reshard::test
