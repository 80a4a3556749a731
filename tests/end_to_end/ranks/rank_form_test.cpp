// What layout ranks writes in torch's formats: rank files as NxD's parallel_layers.save and optimum-neuron have them.

#include <fmt/format.h>

#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/layouts.h"
#include "support/models.h"
#include "support/oracle.h"
#include "support/saved_trees.h"
#include "support/temp_dir.h"
#include "support/torch_files.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

struct Sharded {
  TempDir temp;
  TinyModel model;
  TensorMap originals;

  Sharded(Format format, std::uint32_t tp, bool fuse) {
    Random random(3);
    originals = random_tensors(model, random);
    write_model(temp / "model", model, originals);
    ShardRequest request = shard_request(temp / "model", temp / "out", tp);
    request.target.format = format;
    request.target.options.set_flag("fuse-linears", fuse);
    shard(request);
  }

  static fs::path rank_of(const fs::path& checkpoint, Format format, std::uint32_t tp_rank = 0) {
    const fs::path rank = checkpoint / fmt::format("tensor_parallel_shards/tp_rank_{:02}_pp_rank_00", tp_rank);
    return format == Format::kXser ? rank : rank / "checkpoint.pt";
  }
  SavedTree tree(Format format) const { return read_saved_tree(rank_of(temp / "out", format)); }
};

std::vector<std::string> keys_of(const nlohmann::ordered_json& dict) {
  std::vector<std::string> keys;
  for (const auto& item : dict.items()) keys.push_back(item.key());
  return keys;
}

TEST_CASE("Rank files in torch's formats have the state dict under model, and describe it") {
  for (const Format format : {Format::kPytorch, Format::kXser}) {
    const Sharded sharded(format, 2, false);
    const SavedTree tree = sharded.tree(format);
    CHECK(keys_of(tree.structure) == std::vector<std::string>{"model", "sharded_metadata", "gqa_qkv_metadata"});
    const auto& metadata = tree.structure["sharded_metadata"];
    CHECK(metadata["model.layers.0.mlp.gate_proj.weight"].dump() == R"({"kind":"sharded","partition_dim":0})");
    CHECK(metadata["model.layers.0.mlp.down_proj.weight"].dump() == R"({"kind":"sharded","partition_dim":1})");
    CHECK(metadata["model.norm.weight"].dump() == R"({"kind":"tied","partition_dim":null})");
    CHECK(tree.structure["gqa_qkv_metadata"]["num_attention_heads"].is_null());
    for (const auto& entry : fs::recursive_directory_iterator(sharded.temp / "out"))
      CHECK(!entry.path().string().ends_with(".info.pt"));
  }
}

TEST_CASE("Rank files that this program wrote are read by what they say of themselves alone") {
  for (const Format format : {Format::kPytorch, Format::kXser})
    for (const std::uint32_t tp : {2, 4}) {  // with whole key/value heads, and with replicas
      const Sharded sharded(format, tp, false);
      fs::remove(sharded.temp / "out/config.json");
      fs::remove(sharded.temp / "out/tensor_parallel_shards/mp_metadata_pp_rank_0.json");
      CHECK((consolidated(sharded.temp / "out", sharded.temp / "whole") == sharded.originals));
    }
}

TEST_CASE("Fused linears are written on request, under model alone") {
  for (const Format format : {Format::kPytorch, Format::kXser}) {
    const Sharded sharded(format, 2, true);
    const SavedTree tree = sharded.tree(format);
    CHECK(keys_of(tree.structure) == std::vector<std::string>{"model"});
    CHECK(tree.structure["model"].contains("model.layers.0.mlp.gate_up_proj.weight"));
    CHECK((consolidated(sharded.temp / "out", sharded.temp / "whole") == sharded.originals));
  }
}

TEST_CASE("Between ranks, convert keeps the file format and fused linears") {
  for (const Format format : {Format::kPytorch, Format::kXser})
    for (const bool fuse : {false, true}) {
      const Sharded sharded(format, 2, fuse);
      ConvertRequest request = convert_request(sharded.temp / "out", sharded.temp / "other");
      request.target.layout = layout("ranks");
      request.target.tp = 4;
      convert(request);
      REQUIRE(fs::is_regular_file(Sharded::rank_of(sharded.temp / "other", format, 3)));
      const OracleOptions mesh{.tp = 4, .fuse_mlp = fuse};
      CHECK((read_shards(sharded.temp / "other") == expected_ranks(sharded.model, sharded.originals, mesh)));
    }
}

TEST_CASE("Rank files of older versions, bare state dicts with fused linears, are read and stay fused") {
  Sharded sharded(Format::kPytorch, 2, true);
  for (const std::uint32_t rank : {0, 1}) {
    const fs::path path = Sharded::rank_of(sharded.temp / "out", Format::kPytorch, rank);
    const TensorMap held = read_torch_tensors(path);
    write_torch(path, held);
  }
  CHECK((consolidated(sharded.temp / "out", sharded.temp / "whole") == sharded.originals));
  ConvertRequest request = convert_request(sharded.temp / "out", sharded.temp / "other");
  request.target.layout = layout("ranks");
  request.target.tp = 1;
  convert(request);
  const OracleOptions mesh{.tp = 1};
  CHECK((read_shards(sharded.temp / "other") == expected_ranks(sharded.model, sharded.originals, mesh)));
}

}  // namespace
}  // namespace reshard::test
