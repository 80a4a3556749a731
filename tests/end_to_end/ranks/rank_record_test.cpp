// What files of weights for inference say of themselves, and how it is held against names, config.json and each other.

#include <nlohmann/json.hpp>
#include <thread>

#include "reshard/engine/publish/output.h"
#include "reshard/engine/publish/publish.h"
#include "reshard/formats/safetensors/safetensors.h"
#include "reshard/io/local_storage.h"
#include "support/checkpoints.h"
#include "support/fault_storage.h"
#include "support/golden.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/planned.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Metadata = std::map<std::string, std::string>;

fs::path rank_file(const fs::path& directory, std::uint32_t rank) {
  return directory / ("weights/tp" + std::to_string(rank) + "_sharded_checkpoint.safetensors");
}

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

void swap_files(const fs::path& a, const fs::path& b) {
  const fs::path aside = a.string() + ".aside";
  fs::rename(a, aside);
  fs::rename(b, a);
  fs::rename(aside, b);
}

Error consolidate_error(const TempDir& temp) {
  const Error error = error_of([&] { consolidated(temp / "out", temp / "whole"); });
  CHECK(error.kind() == ErrorKind::kBadInput);
  CHECK_FALSE(fs::exists(temp / "whole"));
  return error;
}

/// 509 words and an intermediate size of 96 over 5 ranks.
void make_padded(const TempDir& temp) {
  ShardRequest request =
      deployed_request(layout("presharded"), testdata("golden/preshard/qwen3-tp5-padded/original"), temp / "out", 5);
  request.target.options.set_flag("pad", true);
  shard(request);
}

void set_config(const fs::path& directory, const char* key, const json& value) {
  json config = json::parse(read_file(directory / "config.json"));
  config[key] = value;
  write_file(directory / "config.json", config.dump());
}

TEST_CASE("Each file says which rank it is, of how many, and how large what was padded had been") {
  const TempDir temp;
  make_padded(temp);
  const TensorMap whole = read_model(testdata("golden/preshard/qwen3-tp5-padded/original"));
  for (std::uint32_t rank = 0; rank < 5; ++rank) {
    const Metadata metadata = metadata_of(rank_file(temp / "out", rank));
    CHECK(metadata.at("format") == "pt");
    CHECK(metadata.at("reshard.tp_rank") == std::to_string(rank));
    CHECK(metadata.at("reshard.tp_degree") == "5");
    json expected = json::object();
    for (const auto& [name, tensor] : whole) {
      const bool rows = name.find("o_proj") == name.npos && name.find("down_proj") == name.npos;
      if (tensor.shape.size() != 2 || tensor.shape[rows ? 0 : 1] % 5 == 0) continue;
      expected[name] = std::vector(tensor.shape.begin(), tensor.shape.end());
    }
    CHECK(expected.size() > 2);
    CHECK(json::parse(metadata.at("reshard.original_shapes")) == expected);
  }

  const fs::path even = testdata("golden/preshard/llama-tp4/original");
  shard(deployed_request(layout("presharded"), even, temp / "even", 4));
  CHECK(metadata_of(rank_file(temp / "even", 2)) ==
        Metadata{{"format", "pt"}, {"reshard.tp_rank", "2"}, {"reshard.tp_degree", "4"}});

  const fs::path heads = testdata("golden/nxdi/llama-6q2kv-tp4-interleaved-pad/original");
  shard(deployed_request(layout("nxdi"), heads, temp / "heads", 4));
  const json filled = json::parse(metadata_of(rank_file(temp / "heads", 0)).at("reshard.original_shapes"));
  CHECK(filled.contains("model.layers.0.self_attn.q_proj.weight"));
  CHECK(filled.contains("model.layers.1.self_attn.o_proj.weight"));
  CHECK(filled.at("model.layers.0.self_attn.k_proj.weight")[0] == 2 * 8);  // 2 heads, each twice
  CHECK_FALSE(filled.contains("model.layers.0.mlp.up_proj.weight"));
}

TEST_CASE("Files of more than ten ranks say their numbers too") {
  const TempDir temp;
  const fs::path model = testdata("golden/preshard/llama-tp4/original");
  shard(deployed_request(layout("presharded"), model, temp / "out", 16));
  for (std::uint32_t rank = 0; rank < 16; ++rank)
    CHECK(metadata_of(rank_file(temp / "out", rank)).at("reshard.tp_rank") == std::to_string(rank));
  CHECK((consolidated(temp / "out", temp / "whole") == read_model(model)));
}

TEST_CASE("Files of ranks that were swapped are told by what they say, and else by their numbers in rank_util") {
  for (const Layout* const kind : {layout("presharded"), layout("nxdi")}) {
    DYNAMIC_SECTION(kind->traits().name) {
      const TempDir temp;
      const fs::path model = testdata("golden/nxdi/llama-tp4/original");  // nothing is replicated
      shard(deployed_request(kind, model, temp / "out", 4));
      swap_files(rank_file(temp / "out", 1), rank_file(temp / "out", 2));
      check_error(consolidate_error(temp), {.path = rank_file(temp / "out", 1),
                                            .says = "its name says tensor-parallel rank 1, its metadata rank 2",
                                            .hint = "swapped"});
      if (kind != layout("nxdi")) continue;
      for (std::uint32_t rank = 0; rank < 4; ++rank) set_metadata(rank_file(temp / "out", rank), {});  // as NxD's
      CHECK_THAT(consolidate_error(temp).what(), Says("rank_util.rank: is not the number of "));
    }
  }
}

TEST_CASE("A rank that is missing at the end is missed, and ranks of a larger mesh are in the way") {
  const TempDir temp;
  const fs::path model = testdata("golden/nxdi/llama-tp4/original");
  shard(deployed_request(layout("nxdi"), model, temp / "out", 4));
  ShardRequest smaller = deployed_request(layout("nxdi"), model, temp / "out", 2);
  smaller.force = true;
  check_refused([&] { plan_shard(smaller); },
                {.says = "tp2_sharded_checkpoint.safetensors, tp3_sharded_checkpoint.safetensors"});

  fs::copy_file(rank_file(temp / "out", 3), rank_file(temp / "out", 4));
  CHECK_THAT(consolidate_error(temp).what(),
             Says("its metadata says that there are 4 tensor-parallel ranks, but the folder holds 5"));
  fs::remove(rank_file(temp / "out", 4));
  fs::remove(rank_file(temp / "out", 3));
  CHECK_THAT(consolidate_error(temp).what(), Says("1 of the 4 ranks is missing: tp3_sharded_checkpoint"));
  for (std::uint32_t rank = 0; rank < 3; ++rank) set_metadata(rank_file(temp / "out", rank), {});
  CHECK_THAT(consolidate_error(temp).hint(), Says("the last ranks are missing"));
}

TEST_CASE("A config.json of other sizes is refused by what the files say of the originals") {
  const auto refused = [](const TempDir& temp, const char* key, const json& value, const std::string& tensor,
                          const std::string& says) {
    CAPTURE(key, value.dump());
    const std::string config = read_file(temp / "out/config.json");
    set_config(temp / "out", key, value);
    const Error error = consolidate_error(temp);
    CHECK(error.tensor().ends_with(tensor));
    CHECK_THAT(error.what(), Says(says));
    CHECK_THAT(error.hint(), Says("config.json"));
    write_file(temp / "out/config.json", config);
  };
  const TempDir padded;  // 67 words and 52 inner elements over 5 ranks
  make_padded(padded);
  refused(padded, "vocab_size", 66, "lm_head.weight", "has the shape [67, 40], but config.json says [66, 40]");
  refused(padded, "vocab_size", 68, "lm_head.weight", "has the shape [67, 40], but config.json says [68, 40]");
  refused(padded, "vocab_size", 70, "lm_head.weight", "it is neither padded nor replicated on these ranks");
  refused(padded, "vocab_size", 71, "lm_head.weight", "of which it makes 15 for a rank");

  const TempDir repeated;  // 2 key/value heads over 8 ranks
  shard(deployed_request(layout("nxdi"), testdata("golden/nxdi/llama-tp8-replicated/original"), repeated / "out", 8));
  const json config = json::parse(read_file(repeated / "out/config.json"));
  const auto heads = config.at("num_key_value_heads").get<std::uint64_t>();
  REQUIRE(heads < 8);
  for (std::uint64_t other = 1; other <= 8; other *= 2)
    if (other != heads)
      refused(repeated, "num_key_value_heads", other, "k_proj.weight", "the file says that the original has the shape");

  const TempDir even;  // nothing is replicated over 4 ranks, or with another config.json
  shard(deployed_request(layout("nxdi"), testdata("golden/nxdi/llama-tp4/original"), even / "out", 4));
  refused(even, "num_key_value_heads", 2, "k_proj.weight", "the file does not say that it is padded or replicated");
}

TEST_CASE("Ranks that say other things of the originals do not belong together, nor those of which some say nothing") {
  const TempDir temp;
  make_padded(temp);
  Metadata metadata = metadata_of(rank_file(temp / "out", 3));
  metadata.erase("reshard.original_shapes");
  set_metadata(rank_file(temp / "out", 3), metadata);
  check_error(consolidate_error(temp), {.path = rank_file(temp / "out", 3),
                                        .says = "its metadata has other shapes of the original tensors than " +
                                                rank_file(temp / "out", 0).string()});
  set_metadata(rank_file(temp / "out", 3), {});
  CHECK_THAT(consolidate_error(temp).what(),
             Says("does not say which rank it is of, but " + rank_file(temp / "out", 0).string() + " does"));
  set_metadata(rank_file(temp / "out", 0), {});
  CHECK_THAT(consolidate_error(temp).what(),
             Says("says which rank it is of, but " + rank_file(temp / "out", 0).string() + " does not"));
  for (std::uint32_t rank = 0; rank < 5; ++rank) set_metadata(rank_file(temp / "out", rank), {});
  CHECK((consolidated(temp / "out", temp / "whole") ==
         read_model(testdata("golden/preshard/qwen3-tp5-padded/original"))));
}

TEST_CASE("Runs that each write some ranks share a directory: no --force for the model's files, and no other ranks") {
  const fs::path model = testdata("golden/nxdi/llama-tp4/original");
  const TempDir temp;
  const auto run = [&](const Layout* kind, const fs::path& of, std::uint32_t tp, std::uint32_t first,
                       std::uint32_t last) {
    ShardRequest request = deployed_request(kind, of, temp / "out", tp);
    request.target.options.set_number("start-rank", first);
    request.target.options.set_number("end-rank", last);
    return request;
  };
  shard(run(layout("nxdi"), model, 4, 0, 1));
  const auto refused = [&](ShardRequest request) {
    request.force = true;
    const auto before = snapshot(temp / "out");
    check_refused([&] { shard(request); },
                  {.says = "of another checkpoint, or of one with another partition: tp0_sharded"});
    CHECK((snapshot(temp / "out") == before));
  };
  refused(run(layout("nxdi"), model, 8, 2, 3));
  refused(run(layout("nxdi"), testdata("golden/nxdi/llama-6q2kv-tp4-interleaved-pad/original"), 4, 2, 3));
  {
    const auto job = plan_shard(run(layout("nxdi"), model, 4, 2, 2));  // two that overlap in time
    const Staging other(*job, local_storage());
    shard(run(layout("nxdi"), model, 4, 3, 3));
    ShardRequest whole = deployed_request(layout("nxdi"), model, temp / "out", 4);
    whole.force = true;
    CHECK_THAT(error_of([&] { shard(whole); }).what(), Says("another run is writing here"));
  }
  shard(run(layout("nxdi"), model, 4, 2, 2));
  CHECK((consolidated(temp / "out", temp / "whole") == read_model(model)));
  CHECK_THAT(error_of([&] { shard(run(layout("nxdi"), model, 4, 2, 2)); }).what(),
             Says("would be replaced: weights/tp2_"));
  write_file(temp / "out/config.json", read_file(temp / "out/config.json") + " ");
  fs::remove(rank_file(temp / "out", 2));
  CHECK_THAT(error_of([&] { shard(run(layout("nxdi"), model, 4, 2, 2)); }).what(),
             Says("would be replaced: config.json"));
}

TEST_CASE("The model's files may come from another run while the output is looked at") {
  const TempDir temp;
  const fs::path output = temp / "out";
  ShardRequest request =
      deployed_request(layout("presharded"), testdata("golden/preshard/llama-tp4/original"), output, 4);
  request.target.options.set_number("start-rank", 1), request.target.options.set_number("end-rank", 1);
  const auto job = plan_shard(request);
  REQUIRE_FALSE(job->copied_files.empty());
  fs::create_directory(output);
  FaultStorage quiet;
  validate_output(quiet, *job);
  for (std::uint64_t at = 0; at < quiet.operations(); ++at) {
    INFO("before operation " << at);
    FaultStorage storage;
    storage.before = [&](FaultStorage::Operation, std::uint64_t number) {
      if (number != at) return;
      for (const CopiedFile& file : job->copied_files) fs::copy_file(file.source, output / file.path);
    };
    CHECK_NOTHROW(validate_output(storage, *job));
    for (const CopiedFile& file : job->copied_files) CHECK(fs::remove(output / file.path));
  }
}

TEST_CASE("Two runs that begin in a directory that is not there yet, each with some ranks, both come through") {
  const fs::path model = testdata("golden/preshard/llama-tp4/original");
  const TempDir temp;
  std::vector<std::thread> runs;
  std::vector<std::string> errors(4);
  for (std::uint32_t rank = 0; rank < 4; ++rank)
    runs.emplace_back([&, rank] {
      try {
        ShardRequest request = deployed_request(layout("presharded"), model, temp / "out", 4);
        request.target.options.set_number("start-rank", rank), request.target.options.set_number("end-rank", rank);
        shard(request);
      } catch (const Error& error) {
        errors[rank] = error.what();
      }
    });
  for (std::thread& run : runs) run.join();
  CHECK(errors == std::vector<std::string>(4));
  CHECK((consolidated(temp / "out", temp / "whole") == read_model(model)));
}

TEST_CASE("Records that make no sense are refused") {
  const TempDir temp;
  make_padded(temp);
  const Metadata good = metadata_of(rank_file(temp / "out", 0));
  const auto refused = [&](const char* key, const std::string& value, const char* says) {
    DYNAMIC_SECTION(key << " " << json(value).dump()) {
      Metadata metadata = good;
      metadata[key] = value;
      set_metadata(rank_file(temp / "out", 0), metadata);
      CHECK_THAT(consolidate_error(temp).what(), Says("tp0_sharded_checkpoint.safetensors: its metadata"));
      CHECK_THAT(consolidate_error(temp).what(), Says(says));
      CHECK_THAT(consolidate_error(temp).hint(), Says("shard it again"));
    }
  };
  for (const char* number : {"", "x", "-1", "1.5", "99999999999999999999", "1\n"}) {
    refused("reshard.tp_rank", number, "reshard.tp_rank, which is not a number of ranks");
    refused("reshard.tp_degree", number, "reshard.tp_degree, which is not a number of ranks");
  }
  refused("reshard.tp_degree", "0", "not a number of ranks");
  refused("reshard.tp_rank", "5", "claims tensor-parallel rank 5 of 5");
  for (const char* text : {"", "{\"a\": [1, 2", "[]", "3", "{\"a\": 1}", "{\"a\": [1, -1]}", "{\"a\": [1.5]}",
                           "{\"a\": [\"1\"]}", "{\"a\": {}}"})
    refused("reshard.original_shapes", text, "which is not an object of shapes");
  SECTION("other shapes than the other ranks'") {
    Metadata metadata = good;
    metadata["reshard.original_shapes"] = "{\"lm_head.weight\": [1]}";
    set_metadata(rank_file(temp / "out", 0), metadata);
    CHECK_THAT(consolidate_error(temp).what(),
               Says("tp1_sharded_checkpoint.safetensors: its metadata has other shapes"));
  }
}

TEST_CASE("A model that only its config.json's plan describes is padded, and comes back by what the files say") {
  const TempDir temp;
  json config = json::parse(kPlannedConfig);
  config["base_model_tp_plan"].erase("layers.*.mlp.gate_up_proj");  // packed matrices are not padded
  config["base_model_tp_plan"].erase("layers.*.experts.up");
  for (const char* key : {"num_attention_heads", "num_key_value_heads"}) config.erase(key);  // nor heads kept whole
  const TensorMap tensors = write_planned(temp / "model", tensors_of("model.", true), config);
  for (const std::uint32_t tp : {3u, 5u, 7u}) {
    DYNAMIC_SECTION("tp " << tp) {
      ShardRequest request = deployed_request(layout("presharded"), temp / "model", temp / "out", tp);
      request.target.options.set_flag("pad", true);
      shard(request);
      CHECK(read_weights(temp / "out").begin()->second.at("lm_head.weight").shape == Dims{(40 + tp - 1) / tp, 16});
      CHECK((consolidated(temp / "out", temp / "whole") == tensors));
    }
  }
}

}  // namespace
}  // namespace reshard::test
