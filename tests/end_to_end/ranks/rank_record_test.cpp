// What files of weights for inference say of themselves, and how it is held against names, config.json and each other.

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "reshard/engine/publish/output.h"
#include "reshard/engine/publish/publish.h"
#include "support/checkpoints.h"
#include "support/fault_storage.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/planned.h"
#include "support/refusals.h"
#include "support/spoilers.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Metadata = std::map<std::string, std::string>;

Metadata metadata_of(const fs::path& file) {
  const auto metadata = read_safetensors(file).metadata;
  return {metadata.begin(), metadata.end()};
}

/// The same file with other metadata.
void set_metadata(const fs::path& file, const Metadata& metadata) {
  const std::string bytes = read_file(file);
  std::uint64_t header_bytes = 0;
  for (std::size_t i = 8; i-- > 0;) header_bytes = header_bytes << 8 | static_cast<unsigned char>(bytes[i]);
  json header = json::parse(bytes.substr(8, header_bytes));
  header["__metadata__"] = metadata;
  write_file(file, safetensors_bytes(header.dump(), bytes.substr(8 + header_bytes)));
}

/// A golden model in a layout for inference.
Input golden(const char* name, const RequestFields& to) {
  return Input(to, [&](const fs::path& directory) {
    fs::copy(testdata("golden") / name / "original", directory);
    return read_model(directory);
  });
}

/// Nothing is replicated on four ranks.
Input nxdi() {
  return golden("nxdi/llama-tp4", {.layout = "nxdi", .tp = 4});
}

/// 67 words and an intermediate size of 52 over 5 ranks.
Input padded() {
  return golden("preshard/qwen3-tp5-padded", {.layout = "presharded", .tp = 5, .options = {"pad"}});
}

/// Some ranks of a model, into "out".
Request some_ranks(const Input& input, std::uint32_t tp, std::uint32_t first, std::uint32_t last) {
  return shard_request(input / "model", input / "out",
                       {.layout = input.to.layout,
                        .tp = tp,
                        .options = {fmt::format("start-rank={}", first), fmt::format("end-rank={}", last)}});
}

TEST_CASE("Each file says which rank it is, of how many, and how large what was padded had been") {
  const Input input = padded();
  for (std::uint32_t rank = 0; rank < 5; ++rank) {
    const Metadata metadata = metadata_of(input.rank_file(rank));
    CHECK(metadata.at("format") == "pt");
    CHECK(metadata.at("reshard.tp_rank") == std::to_string(rank));
    CHECK(metadata.at("reshard.tp_degree") == "5");
    json expected = json::object();
    for (const auto& [name, tensor] : input.tensors) {
      const bool rows = name.find("o_proj") == name.npos && name.find("down_proj") == name.npos;
      if (tensor.shape.size() != 2 || tensor.shape[rows ? 0 : 1] % 5 == 0) continue;
      expected[name] = std::vector(tensor.shape.begin(), tensor.shape.end());
    }
    CHECK(expected.size() > 2);
    CHECK(json::parse(metadata.at("reshard.original_shapes")) == expected);
  }

  const Input even = golden("preshard/llama-tp4", {.layout = "presharded", .tp = 4});
  CHECK(metadata_of(even.rank_file(2)) ==
        Metadata{{"format", "pt"}, {"reshard.tp_rank", "2"}, {"reshard.tp_degree", "4"}});

  const Input heads = golden("nxdi/llama-6q2kv-tp4-interleaved-pad", {.layout = "nxdi", .tp = 4});
  const json filled = json::parse(metadata_of(heads.rank_file(0)).at("reshard.original_shapes"));
  CHECK(filled.contains("model.layers.0.self_attn.q_proj.weight"));
  CHECK(filled.contains("model.layers.1.self_attn.o_proj.weight"));
  CHECK(filled.at("model.layers.0.self_attn.k_proj.weight")[0] == 2 * 8);  // 2 heads, each twice
  CHECK_FALSE(filled.contains("model.layers.0.mlp.up_proj.weight"));
}

TEST_CASE("Files of more than ten ranks say their numbers too") {
  const Input input = golden("preshard/llama-tp4", {.layout = "presharded", .tp = 16});
  for (std::uint32_t rank = 0; rank < 16; ++rank)
    CHECK(metadata_of(input.rank_file(rank)).at("reshard.tp_rank") == std::to_string(rank));
  CHECK((input.whole() == input.tensors));
}

TEST_CASE("Files of ranks that were swapped are told by what they say, and else by their numbers in rank_util") {
  for (const char* kind : {"presharded", "nxdi"}) {
    DYNAMIC_SECTION(kind) {
      const Input input = golden("nxdi/llama-tp4", {.layout = kind, .tp = 4});
      swap_files(input.rank_file(1), input.rank_file(2));
      check_error(input.refusal(), {.path = input.rank_file(1),
                                    .says = "its name says tensor-parallel rank 1, its metadata rank 2",
                                    .hint = "swapped"});
      if (kind != std::string("nxdi")) continue;
      for (std::uint32_t rank = 0; rank < 4; ++rank) set_metadata(input.rank_file(rank), {});  // as NxD's
      CHECK_THAT(input.refusal().what(), Says("rank_util.rank: is not the number of "));
    }
  }
}

TEST_CASE("A rank that is missing at the end is missed, and ranks of a larger mesh are in the way") {
  const Input input = nxdi();
  const RequestFields smaller{.layout = "nxdi", .tp = 2, .force = true};
  check_refused([&] { plan_shard(shard_request(input / "model", input / "out", smaller)); },
                {.says = "tp2_sharded_checkpoint.safetensors, tp3_sharded_checkpoint.safetensors"});

  fs::copy_file(input.rank_file(3), input.rank_file(4));
  CHECK_THAT(input.refusal().what(),
             Says("its metadata records that there are 4 tensor-parallel ranks, but the folder contains 5"));
  for (const std::uint32_t rank : {3, 4}) fs::remove(input.rank_file(rank));
  CHECK_THAT(input.refusal().what(), Says("1 of the 4 ranks is missing: tp3_sharded_checkpoint"));
  for (std::uint32_t rank = 0; rank < 3; ++rank) set_metadata(input.rank_file(rank), {});
  CHECK_THAT(input.refusal().hint(), Says("the last ranks are missing"));
}

TEST_CASE("A config.json of other sizes is refused by what the files say of the originals") {
  const auto refused = [](const Input& input, const char* key, const json& value, const std::string& tensor,
                          const std::string& says) {
    CAPTURE(key, value.dump());
    const std::string config = read_file(input / "out/config.json");
    merge_json(input / "out/config.json", {{key, value}});
    const Error error = input.refusal();
    CHECK(error.tensor().ends_with(tensor));
    check_error(error, {.says = says, .hint = "config.json"});
    write_file(input / "out/config.json", config);
  };
  const Input words = padded();
  refused(words, "vocab_size", 66, "lm_head.weight", "has the shape [67, 40], but [66, 40] in config.json");
  refused(words, "vocab_size", 68, "lm_head.weight", "has the shape [67, 40], but [68, 40] in config.json");
  refused(words, "vocab_size", 70, "lm_head.weight", "it is neither padded nor replicated on these ranks");
  refused(words, "vocab_size", 71, "lm_head.weight", "the rule expects 15 per rank");

  const Input repeated = golden("nxdi/llama-tp8-replicated", {.layout = "nxdi", .tp = 8});
  const json config = json::parse(read_file(repeated / "out/config.json"));
  const auto heads = config.at("num_key_value_heads").get<std::uint64_t>();
  REQUIRE(heads < 8);
  for (std::uint64_t other = 1; other <= 8; other *= 2)
    if (other != heads)
      refused(repeated, "num_key_value_heads", other, "k_proj.weight", "the logical tensor has the shape");
  refused(nxdi(), "num_key_value_heads", 2, "k_proj.weight",
          "the file does not record that it is padded or replicated");
}

TEST_CASE("Ranks that say other things of the originals do not belong together, nor those of which some say nothing") {
  const Input input = padded();
  const std::string first = input.rank_file(0).string();
  Metadata metadata = metadata_of(input.rank_file(3));
  metadata.erase("reshard.original_shapes");
  set_metadata(input.rank_file(3), metadata);
  check_error(input.refusal(), {.path = input.rank_file(3),
                                .says = "its metadata has other shapes of the original tensors than " + first});
  set_metadata(input.rank_file(3), {});
  CHECK_THAT(input.refusal().what(), Says("does not record its rank, but " + first + " does"));
  set_metadata(input.rank_file(0), {});
  CHECK_THAT(input.refusal().what(), Says("records its rank, but " + first + " does not"));
  for (std::uint32_t rank = 0; rank < 5; ++rank) set_metadata(input.rank_file(rank), {});
  CHECK((input.whole() == input.tensors));
}

TEST_CASE("Runs that each write some ranks share a directory: no --force for the model's files, and no other ranks") {
  const Input input = nxdi();
  fs::remove_all(input / "out");
  shard(some_ranks(input, 4, 0, 1));
  const auto refused = [&](Request request) {
    request.force = true;
    const auto before = snapshot(input / "out");
    check_refused([&] { shard(request); }, {.says = "of another checkpoint, or of another partition: tp0_sharded"});
    CHECK((snapshot(input / "out") == before));
  };
  refused(some_ranks(input, 8, 2, 3));
  Request other = some_ranks(input, 4, 2, 3);
  other.source.path = testdata("golden/nxdi/llama-6q2kv-tp4-interleaved-pad/original");
  refused(other);
  {
    const auto job = plan_shard(some_ranks(input, 4, 2, 2));  // two that overlap in time
    const Staging staging(*job, local_storage());
    shard(some_ranks(input, 4, 3, 3));
    const RequestFields whole{.layout = "nxdi", .tp = 4, .force = true};
    CHECK_THAT(error_of([&] { shard(input / "model", input / "out", whole); }).what(),
               Says("another run is writing here"));
  }
  shard(some_ranks(input, 4, 2, 2));
  CHECK((input.whole() == input.tensors));
  CHECK_THAT(error_of([&] { shard(some_ranks(input, 4, 2, 2)); }).what(), Says("would be replaced: weights/tp2_"));
  write_file(input / "out/config.json", read_file(input / "out/config.json") + " ");
  fs::remove(input.rank_file(2));
  CHECK_THAT(error_of([&] { shard(some_ranks(input, 4, 2, 2)); }).what(), Says("would be replaced: config.json"));
}

TEST_CASE("The model's files may come from another run while the output is looked at") {
  const Input input = nxdi();
  fs::remove_all(input / "out");
  const auto job = plan_shard(some_ranks(input, 4, 1, 1));
  REQUIRE_FALSE(job->copied_files.empty());
  fs::create_directory(input / "out");
  FaultStorage quiet;
  validate_output(quiet, *job);
  for (std::uint64_t at = 0; at < quiet.operations(); ++at) {
    INFO("before operation " << at);
    FaultStorage storage;
    storage.before = [&](FaultStorage::Operation, std::uint64_t number) {
      if (number != at) return;
      for (const CopiedFile& file : job->copied_files) fs::copy_file(file.source, input / "out" / file.path);
    };
    CHECK_NOTHROW(validate_output(storage, *job));
    for (const CopiedFile& file : job->copied_files) CHECK(fs::remove(input / "out" / file.path));
  }
}

TEST_CASE("The model's files may come from another run while outputs are published") {
  const Input input = nxdi();
  std::uint64_t count = 1;
  for (std::uint64_t at = 0; at < count; ++at) {
    INFO("before operation " << at);
    fs::remove_all(input / "out");
    const auto job = plan_shard(some_ranks(input, 4, 1, 1));
    FaultStorage storage;
    storage.before = [&](FaultStorage::Operation, std::uint64_t number) {
      if (number != at || !fs::is_directory(input / "out")) return;
      for (const CopiedFile& file : job->copied_files)
        fs::copy_file(file.source, input / "out" / file.path, fs::copy_options::skip_existing);
    };
    RunOptions options;
    options.stores = storage;
    CHECK_NOTHROW(execute(*job, options));
    CHECK(fs::exists(input.rank_file(1)));
    count = storage.operations();
  }
  CHECK(count > 10);
}

TEST_CASE("Two runs that begin in a directory that is not there yet, each with some ranks, both come through") {
  const Input input = nxdi();
  fs::remove_all(input / "out");
  std::vector<std::thread> runs;
  std::vector<std::string> errors(4);
  for (std::uint32_t rank = 0; rank < 4; ++rank)
    runs.emplace_back([&, rank] {
      try {
        shard(some_ranks(input, 4, rank, rank));
      } catch (const Error& error) {
        errors[rank] = error.what();
      }
    });
  for (std::thread& run : runs) run.join();
  CHECK(errors == std::vector<std::string>(4));
  CHECK((input.whole() == input.tensors));
}

TEST_CASE("Records that make no sense are refused") {
  const Input input = padded();
  const Metadata good = metadata_of(input.rank_file(0));
  struct Row {
    const char* key;
    std::string value;
    const char* says;
  };
  const char* const number = "which is not a number of ranks";
  std::vector<Row> rows{{"tp_degree", "0", number}, {"tp_rank", "5", "claims tensor-parallel rank 5 of 5"}};
  for (const char* text : {"", "x", "-1", "1.5", "99999999999999999999", "1\n"})
    for (const char* key : {"tp_rank", "tp_degree"}) rows.push_back({key, text, number});
  for (const char* text : {"", R"({"a": [1, 2)", "[]", "3", R"({"a": 1})", R"({"a": [1, -1]})", R"({"a": [1.5]})",
                           R"({"a": ["1"]})", R"({"a": {}})"})
    rows.push_back({"original_shapes", text, "which is not an object of shapes"});
  for (const Row& row : rows) DYNAMIC_SECTION(row.key << " " << json(row.value).dump()) {
      Metadata metadata = good;
      metadata[std::string("reshard.") + row.key] = row.value;
      set_metadata(input.rank_file(0), metadata);
      check_error(input.refusal(),
                  {.says = {"tp0_sharded_checkpoint.safetensors: its metadata", row.says}, .hint = "shard it again"});
    }
  SECTION("other shapes than the other ranks'") {
    Metadata metadata = good;
    metadata["reshard.original_shapes"] = "{\"lm_head.weight\": [1]}";
    set_metadata(input.rank_file(0), metadata);
    CHECK_THAT(input.refusal().what(), Says("tp1_sharded_checkpoint.safetensors: its metadata has other shapes"));
  }
}

TEST_CASE("A model that only its config.json's plan describes is padded, and comes back by what the files say") {
  json config = json::parse(kPlannedConfig);
  config["base_model_tp_plan"].erase("layers.*.mlp.gate_up_proj");  // packed matrices are not padded
  config["base_model_tp_plan"].erase("layers.*.experts.up");
  for (const char* key : {"num_attention_heads", "num_key_value_heads"}) config.erase(key);  // nor heads kept whole
  for (const std::uint32_t tp : {3u, 5u, 7u}) {
    CAPTURE(tp);
    const Input input({.layout = "presharded", .tp = tp, .options = {"pad"}}, [&](const fs::path& directory) {
      return write_planned(directory, tensors_of("model.", true), config);
    });
    CHECK(read_tensors(input.rank_file(0)).at("lm_head.weight").shape == Dims{(40 + tp - 1) / tp, 16});
    CHECK((input.whole() == input.tensors));
  }
}

}  // namespace
}  // namespace reshard::test
