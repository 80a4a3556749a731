// Shards without metadata, as NxD's training converter writes them: testdata/golden/converter.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::vector<fs::path> cases() {
  return golden_cases("converter");
}

/// The shards of a case in a directory of their own, with config.json beside them as users put it there.
ConsolidateRequest request_of(const fs::path& golden_case, const TempDir& temp) {
  fs::create_directory(temp / "nxd");
  fs::copy(golden_case / "model", temp / "nxd/model", fs::copy_options::recursive);
  fs::copy_file(golden_case / "original/config.json", temp / "nxd/config.json");
  ConsolidateRequest request;
  request.source.path = temp / "nxd";
  request.output_directory = temp / "whole";
  return request;
}

TEST_CASE("Shards without metadata are consolidated by the model beside them into the original, byte for byte") {
  REQUIRE(cases().size() == 5);
  for (const fs::path& golden_case : cases()) {
    DYNAMIC_SECTION(golden_case.filename().string()) {
      const TempDir temp;
      const ConsolidateRequest request = request_of(golden_case, temp);
      consolidate(request);
      CHECK((snapshot(temp / "whole") == snapshot(golden_case / "original")));
      const json golden = json::parse(read_file(golden_case / "golden.json"));
      CHECK(describe_tensors(read_model(temp / "whole")) == golden.at("original"));

      const auto job = plan_consolidate(request);
      run_in_blocks(*job, temp / "blocks", 24, 2);
      CHECK((read_file(temp / "blocks/model.safetensors") == read_file(golden_case / "original/model.safetensors")));
    }
  }
}

/// Of every rank: its file → tensors.
std::map<std::string, TensorMap> read_torch_ranks(const fs::path& directory) {
  std::map<std::string, TensorMap> ranks;
  for (const auto& [rank, tensors] : read_shards(directory)) ranks["model/dp_rank_00_" + rank + ".pt"] = tensors;
  return ranks;
}

TEST_CASE("The layout nxd is what the converter makes, tensor by tensor, and comes back") {
  for (const fs::path& golden_case : cases()) {
    DYNAMIC_SECTION(golden_case.filename().string()) {
      const TempDir temp;
      const json golden = golden_of(golden_case);
      const json& options = golden.at("case");
      ShardRequest request =
          shard_request(golden_case / "original", temp / "out", options.at("tp").get<std::uint32_t>(),
                        options.at("pp").get<std::uint32_t>());
      request.target.vpp = options.at("vpp").get<std::uint32_t>();
      request.target.layout = layout("nxd"),
      request.target.format = options.at("xser").is_null() ? Format::kPytorch : Format::kXser;
      request.target.options.set_flag("fuse-qkv", options.at("fuse_qkv") || options.at("coalesce_qkv"));
      if (options.at("qkv_linear"))
        request.target.options.set_number("kv-size-multiplier", options.at("kv_size_multiplier").get<std::uint64_t>());
      shard(request);
      json found = json::object();
      for (const auto& [file, tensors] : read_torch_ranks(temp / "out")) found[file] = describe_tensors(tensors);
      CHECK(found == golden.at("files"));
      ConsolidateRequest back;
      back.source.path = temp / "out";
      back.output_directory = temp / "whole";
      consolidate(back);
      CHECK((read_model(temp / "whole") == read_model(golden_case / "original")));

      request.force = true;  // over its own outputs, of which nothing is foreign
      fs::remove(temp / "out/model/dp_rank_00_tp_rank_00_pp_rank_00.pt");
      shard(request);
      write_file(temp / "out/model/notes.txt", "mine");
      const Error foreign = error_of([&] { shard(request); });
      CHECK_THAT(foreign.what(), Says("notes.txt"));
    }
  }
}

TEST_CASE("Adjacent copies: a head's are on neighbours, the queries in their own order, where the converter is wrong") {
  const fs::path model = testdata("golden/converter/llama-tp8-m2-trn1/original");
  const TensorMap tensors = read_model(model);
  const TempDir temp;
  ShardRequest request = shard_request(model, temp / "out", 8);
  request.target.layout = layout("nxd"), request.target.format = Format::kPytorch;
  request.target.options.set("kv-replication", "adjacent");
  shard(request);
  const auto ranks = read_torch_ranks(temp / "out");
  REQUIRE(ranks.size() == 8);
  // 8 query and 4 key/value heads of 4 rows: rank r has query head r and key/value head r / 2. NxD's converter would
  // write head r % 4 here, of which the queries of rank r know nothing.
  const TensorData& query = tensors.at("model.layers.1.self_attn.q_proj.weight");
  const TensorData& key = tensors.at("model.layers.1.self_attn.k_proj.weight");
  const std::size_t head_bytes = 4 * 32 * 2;
  for (std::size_t rank = 0; rank < 8; ++rank) {
    const TensorMap& held = ranks.at("model/dp_rank_00_tp_rank_0" + std::to_string(rank) + "_pp_rank_00.pt");
    const std::string prefix = "model.layers.1.self_attn.qkv_proj.weight_";
    CHECK((held.at(prefix + "q").bytes == query.bytes.substr(rank * head_bytes, head_bytes)));
    CHECK((held.at(prefix + "k").bytes == key.bytes.substr(rank / 2 * head_bytes, head_bytes)));
  }
  ConsolidateRequest back;
  back.source.path = temp / "out";
  back.output_directory = temp / "whole";
  const Error tiled = error_of([&] { consolidate(back); });
  CHECK_THAT(tiled.hint(), Says("`from-kv-replication`"));
  back.source.options.set("kv-replication", "adjacent");
  consolidate(back);
  CHECK((read_model(temp / "whole") == tensors));
  ConvertRequest to_ranks = convert_request(temp / "out", temp / "ranks");
  to_ranks.target.layout = layout("ranks");
  to_ranks.source.options.set("kv-replication", "adjacent");
  convert(to_ranks);
  shard(shard_request(model, temp / "direct", 8));
  CHECK((read_shards(temp / "ranks") == read_shards(temp / "direct")));
}

TEST_CASE("Shards without metadata and without a model are refused, and the hint says what to copy where") {
  for (const fs::path& golden_case : cases()) {
    DYNAMIC_SECTION(golden_case.filename().string()) {
      const TempDir temp;
      const ConsolidateRequest request = request_of(golden_case, temp);
      fs::remove(temp / "nxd/config.json");
      const Error error = error_of([&] { plan_consolidate(request); });
      CHECK(error.kind() == ErrorKind::kBadInput);
      CHECK(error.path() == (temp / "nxd").string());
      CHECK_THAT(error.what(), Says("has no metadata files"));
      CHECK_THAT(error.hint(),
                 Says("copy the model's config.json into " + (temp / "nxd").string() + ", or say with `config`"));
    }
  }
}

TEST_CASE("Shards without metadata that are not of the model beside them are refused by tensor and file") {
  const fs::path golden_case = testdata("golden/converter/llama-tp8-m2-trn1");
  const auto refused = [&](const char* key, const json& value) {
    const TempDir temp;
    const ConsolidateRequest request = request_of(golden_case, temp);
    json config = json::parse(read_file(temp / "nxd/config.json"));
    config[key] = value;
    write_file(temp / "nxd/config.json", config.dump());
    const Error error = error_of([&] { consolidate(request); });
    INFO(error.what());
    CHECK(error.kind() == ErrorKind::kBadInput);
    CHECK_FALSE(fs::exists(temp / "whole"));
    return error;
  };
  const json config = json::parse(read_file(golden_case / "original/config.json"));
  const Error vocabulary = refused("vocab_size", config.at("vocab_size").get<int>() * 3);
  CHECK(vocabulary.tensor() == "model.embed_tokens.weight");
  CHECK_THAT(vocabulary.what(), Says("dp_rank_00_tp_rank_00_pp_rank_00.pt"));
  CHECK_THAT(refused("num_hidden_layers", 1).what(), Says("is no parameter of llama"));
  CHECK_THAT(refused("num_key_value_heads", 3).what(), Says("do not fall into groups"));
  CHECK_THAT(refused("num_attention_heads", 16).what(), Says("self_attn.q"));
  // Two heads of four copies each would fit in size, but the copies differ.
  CHECK_THAT(refused("num_key_value_heads", 2).what(), Says("is a replica of"));
}

TEST_CASE("Without metadata replicas prove the layout: ranks in another order are refused, whatever is allowed") {
  const fs::path golden_case = testdata("golden/converter/llama-tp8-m2-trn1");
  const TempDir temp;
  ConsolidateRequest request = request_of(golden_case, temp);
  const auto rank = [&](int tp) {
    return temp / ("nxd/model/dp_rank_00_tp_rank_0" + std::to_string(tp) + "_pp_rank_00.pt");
  };
  // The two copies of a key/value head on neighbours, as trn2 has them, and not half of the ranks apart.
  fs::rename(rank(1), temp / "aside");
  fs::rename(rank(4), rank(1));
  fs::rename(temp / "aside", rank(4));
  request.check_replicas = false;
  RunOptions options;
  options.replicas = Replicas::kFirst;
  const Error error = error_of([&] { consolidate(request, options); });
  CHECK(error.kind() == ErrorKind::kBadInput);
  CHECK_THAT(error.tensor(), Says("qkv_proj.weight_"));
  CHECK_THAT(error.hint(), Says("heads are placed in another way (`from-kv-replication`"));
  CHECK_FALSE(fs::exists(temp / "whole"));
}

}  // namespace
}  // namespace reshard::test
