// What layout ranks writes in torch's formats: rank files as NxD's parallel_layers.save and optimum-neuron have them.

#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/input.h"
#include "support/oracle.h"
#include "support/saved_trees.h"
#include "support/torch_files.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

RequestFields ranks(Format format, std::uint32_t tp, bool fuse = false) {
  RequestFields fields{.layout = "ranks", .format = format, .tp = tp};
  if (fuse) fields.options = {"fuse-linears"};
  return fields;
}

std::vector<std::string> keys_of(const nlohmann::ordered_json& dict) {
  std::vector<std::string> keys;
  for (const auto& item : dict.items()) keys.push_back(item.key());
  return keys;
}

TEST_CASE("Rank files in torch's formats have the state dict under model, and describe it") {
  for (const Format format : {Format::kPytorch, Format::kXser}) {
    const Input input({}, ranks(format, 2));
    const SavedTree tree = read_saved_tree(input.rank_file(0));
    CHECK(keys_of(tree.structure) == std::vector<std::string>{"model", "sharded_metadata", "gqa_qkv_metadata"});
    const auto& metadata = tree.structure["sharded_metadata"];
    CHECK(metadata["model.layers.0.mlp.gate_proj.weight"].dump() == R"({"kind":"sharded","partition_dim":0})");
    CHECK(metadata["model.layers.0.mlp.down_proj.weight"].dump() == R"({"kind":"sharded","partition_dim":1})");
    CHECK(metadata["model.norm.weight"].dump() == R"({"kind":"tied","partition_dim":null})");
    CHECK(tree.structure["gqa_qkv_metadata"]["num_attention_heads"].is_null());
    for (const auto& entry : fs::recursive_directory_iterator(input.path()))
      CHECK(!entry.path().string().ends_with(".info.pt"));
  }
}

TEST_CASE("Rank files that this program wrote are read by what they say of themselves alone") {
  for (const Format format : {Format::kPytorch, Format::kXser})
    for (const std::uint32_t tp : {2, 4}) {  // with whole key/value heads, and with replicas
      const Input input({}, ranks(format, tp));
      fs::remove(input / "out/config.json");
      fs::remove(input / "out/tensor_parallel_shards/mp_metadata_pp_rank_0.json");
      CHECK((input.whole() == input.tensors));
    }
}

TEST_CASE("Fused linears are written on request, under model alone") {
  for (const Format format : {Format::kPytorch, Format::kXser}) {
    const Input input({}, ranks(format, 2, true));
    const SavedTree tree = read_saved_tree(input.rank_file(0));
    CHECK(keys_of(tree.structure) == std::vector<std::string>{"model"});
    CHECK(tree.structure["model"].contains("model.layers.0.mlp.gate_up_proj.weight"));
    CHECK((input.whole() == input.tensors));
  }
}

TEST_CASE("Between ranks, convert keeps the file format and fused linears") {
  for (const Format format : {Format::kPytorch, Format::kXser})
    for (const bool fuse : {false, true}) {
      const Input input({}, ranks(format, 2, fuse));
      convert(input.path(), input / "other", {.layout = "ranks", .tp = 4});
      CHECK(fs::is_regular_file(input / "other" / fs::relative(input.rank_file(3), input.path())));
      const OracleOptions mesh{.tp = 4, .fuse_mlp = fuse};
      CHECK((read_shards(input / "other") == expected_ranks(input.model, input.tensors, mesh)));
    }
}

TEST_CASE("Rank files of older versions, bare state dicts with fused linears, are read and stay fused") {
  const Input input({}, ranks(Format::kPytorch, 2, true));
  for (const std::uint32_t rank : {0, 1}) write_torch(input.rank_file(rank), read_torch_tensors(input.rank_file(rank)));
  CHECK((input.whole() == input.tensors));
  convert(input.path(), input / "other", {.layout = "ranks", .tp = 1});
  CHECK((read_shards(input / "other") == expected_ranks(input.model, input.tensors, {.tp = 1})));
}

}  // namespace
}  // namespace reshard::test
