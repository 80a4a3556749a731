// Modules with names of their own in NxD's trainers: forms that no file of testdata/golden/neuron has.

#include <nlohmann/json.hpp>
#include <regex>

#include "support/checkpoints.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/requests.h"
#include "support/spoilers.h"
#include "support/temp_dir.h"
#include "support/torch_files.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMegatronTag = "checkpoint/megatron_llama--step=5-consumed_samples=160.0.ckpt";

/// A copy of a case's rank files, in which `change` has changed each rank's tensors.
template <typename Change>
fs::path changed_ranks(const fs::path& ranks, const fs::path& copy, Change&& change) {
  for (const auto& entry : fs::directory_iterator(ranks / "model")) {
    TensorMap tensors = read_torch_tensors(entry.path());
    change(tensors);
    fs::create_directories(copy / "model");
    write_torch(copy / "model" / entry.path().filename(), tensors);
  }
  return copy;
}

RequestFields with_config(const fs::path& config) {
  RequestFields fields;
  fields.config = config;
  return fields;
}

TEST_CASE("The names that NxD 0.8 has for experts are read") {
  const TempDir temp;
  const fs::path golden = testdata("golden/neuron/mixtral-tp2");
  const fs::path old = changed_ranks(golden / "checkpoint/step_3", temp / "old", [](TensorMap& tensors) {
    TensorMap renamed;
    for (auto& [name, tensor] : tensors)
      renamed[std::regex_replace(name, std::regex(R"(mlp_op\.)"), "")] = std::move(tensor);
    REQUIRE(renamed.count("model.layers.0.mlp.expert_mlps.gate_up_proj.weight") == 1);
    tensors = std::move(renamed);
  });
  CHECK((consolidated(old, temp / "whole", with_config(golden / "original")) == read_whole(golden / "original")));
}

TEST_CASE("Experts that are not transposed are refused by the converter that writes them") {
  const TempDir temp;
  const fs::path golden = testdata("golden/neuron/mixtral-tp2");
  const fs::path wrong = changed_ranks(golden / "checkpoint/step_3", temp / "wrong", [](TensorMap& tensors) {
    for (auto& [name, tensor] : tensors) {
      if (name.ends_with("gate_up_proj.weight")) tensor.shape = {4, 12, 16};  // [E, I, 2H/T]; was [E, H, 2I/T]
      if (name.ends_with("down_proj.weight")) tensor.shape = {4, 8, 12};
    }
  });
  check_refused([&] { plan_consolidate(consolidate_request(wrong, temp / "out", with_config(golden / "original"))); },
                {.kind = ErrorKind::kUnsupported,
                 .says = {"has the shape [4, 12, 16] instead of [4, 16, 12]", "convert_checkpoints.py"},
                 .hint = "Hugging Face model",
                 .unwritten = temp / "out"});
}

TEST_CASE("Layers between those with experts have the MLP of llama") {
  const TempDir temp;
  const fs::path golden = testdata("golden/neuron/mixtral-tp2");
  TensorMap tensors = read_whole(golden / "original");
  const std::string layer = "model.layers.1.";
  const std::string expert = layer + "block_sparse_moe.experts.0.";
  for (const auto& [from, to] :
       {std::pair("w1", "gate_proj"), std::pair("w3", "up_proj"), std::pair("w2", "down_proj")})
    tensors[layer + "mlp." + to + ".weight"] = tensors.at(expert + from + ".weight");
  std::erase_if(tensors, [&](const auto& one) { return one.first.starts_with(layer + "block_sparse_moe."); });
  fs::create_directories(temp / "model");
  fs::copy(golden / "original/config.json", temp / "model/config.json");
  merge_json(temp / "model/config.json", {{"moe_frequency", 2}});
  write_safetensors(temp / "model/model.safetensors", tensors);
  shard(temp / "model", temp / "ranks", {.layout = "nxd", .tp = 2, .ep = 2});
  const auto ranks = read_shards(temp / "ranks");
  CHECK(ranks.begin()->second.count(layer + "mlp.gate_up_proj.weight") == 1);
  CHECK(ranks.begin()->second.count("model.layers.0.mlp.expert_mlps.mlp_op.gate_up_proj.weight") == 1);
  CHECK((consolidated(temp / "ranks", temp / "whole", with_config(temp / "model")) == tensors));
}

TEST_CASE("Buffers of another dtype than the weights do not show that training saved a checkpoint") {
  const TempDir temp;
  const fs::path golden = testdata("golden/neuron/megatron-mha-tp2");
  const fs::path copy = changed_ranks(golden / kMegatronTag, temp / "copy", [](TensorMap& tensors) {
    for (auto& [name, tensor] : tensors)
      if (name.ends_with("inv_freq")) tensor = floats({2}, {1, 0.01F});
  });
  RequestFields fields = with_config(golden / "original");
  check_refused([&] { plan_consolidate(consolidate_request(copy, temp / "out", fields)); },
                {.says = "the order of its rows is unknown", .hint = "`from-qkv-rows`", .unwritten = temp / "out"});
  fields.source_options = {"qkv-rows=by-head"};
  CHECK((consolidated(copy, temp / "whole", fields) == read_whole(golden / "original")));
}

TEST_CASE("An order of rows that contradicts the buffers of training is refused") {
  const TempDir temp;
  const fs::path golden = testdata("golden/neuron/megatron-mha-tp2");
  RequestFields fields = with_config(golden / "original");
  fields.source_options = {"qkv-rows=by-projection"};
  check_refused([&] { consolidated(golden / kMegatronTag, temp / "whole", fields); },
                {.says = "contradicts the files", .hint = "leave out `from-qkv-rows`", .unwritten = temp / "whole"});
}

TEST_CASE("Models that megatron style cannot have are refused") {
  const TempDir temp;
  const RequestFields megatron{.layout = "nxd", .tp = 4, .options = {"model-source=megatron"}};
  const fs::path golden = testdata("golden/neuron/llama-qkv-linear-tp2/original");
  check_refused([&] { plan_shard(shard_request(golden, temp / "out", megatron)); },
                {.kind = ErrorKind::kUsage, .says = "key/value heads", .unwritten = temp / "out"});
  const Input tied({.heads = 4, .kv_heads = 4, .tied = true});
  check_refused(
      [&] { plan_shard(shard_request(tied / "model", temp / "out", megatron)); },
      {.kind = ErrorKind::kUnsupported, .tensor = "lm_head.weight", .says = "is tied to", .unwritten = temp / "out"});
}

TEST_CASE("More ranks than DBRX has key/value heads replicate them in either order") {
  const TempDir temp;
  const fs::path golden = testdata("golden/neuron/dbrx-tp2/original");
  const auto form = [](const std::string& order) {
    return std::vector<std::string>{"kv-replication=" + order, "kv-size-multiplier=2"};
  };
  for (const std::string order : {"tiled", "adjacent"}) {
    CAPTURE(order);
    const fs::path out = temp / order;
    shard(golden, out, {.layout = "nxd", .tp = 4, .options = form(order)});
    RequestFields fields = with_config(golden);
    fields.source_options = {"kv-replication=" + order};
    CHECK((consolidated(out, temp / (order + "_whole"), fields) == read_whole(golden)));
    fields.source_options = {std::string("kv-replication=") + (order == "tiled" ? "adjacent" : "tiled")};
    check_refused([&] { consolidated(out, temp / "wrong", fields); },
                  {.kind = ErrorKind::kBadInput, .hint = "`from-kv-replication`"});
  }
  CHECK((read_shards(temp / "tiled") != read_shards(temp / "adjacent")));
  check_refused([&] { shard(golden, temp / "three", {.layout = "nxd", .tp = 4, .options = {"kv-size-multiplier=4"}}); },
                {.kind = ErrorKind::kUsage, .unwritten = temp / "three"});
}

TEST_CASE("Notes and hints for DBRX follow from the projections that NxD stores") {
  const TempDir temp;
  const fs::path golden = testdata("golden/neuron/dbrx-tp2/original");
  const auto notes = [&](std::uint32_t tp, const std::vector<std::string>& options) {
    return joined_notes(
        *plan_shard(shard_request(golden, temp / "out", {.layout = "nxd", .tp = tp, .options = options})));
  };
  CHECK_THAT(notes(2, {"kv-size-multiplier=2"}), !Says("has no effect"));
  CHECK_THAT(notes(4, {"kv-replication=adjacent"}), !Says("has no effect"));
  CHECK_THAT(notes(2, {"kv-replication=adjacent"}), Says("`kv-replication` has no effect"));
  CHECK_THAT(notes(2, {"fuse-qkv"}), Says("`fuse-qkv` has no effect: models of dbrx have one form"));
  for (const std::uint32_t tp : {3, 8}) {
    CAPTURE(tp);
    check_refused([&] { plan_shard(shard_request(golden, temp / "out", {.layout = "nxd", .tp = tp})); },
                  {.kind = ErrorKind::kUsage, .hint = "TP degrees that work for this model: 1, 2, 4"});
  }
}

TEST_CASE("Stages of models in megatron style have equally many layers") {
  const TempDir temp;
  const Input input({.layers = 3, .heads = 4, .kv_heads = 4});
  RequestFields megatron{.layout = "nxd", .tp = 2, .pp = 2, .options = {"model-source=megatron"}};
  check_refused([&] { plan_shard(shard_request(input / "model", temp / "out", megatron)); },
                {.kind = ErrorKind::kUsage, .says = "3 layers over 2 stages", .hint = "a `pp` that divides"});
  megatron.pp = 3;
  CHECK_NOTHROW(plan_shard(shard_request(input / "model", temp / "out", megatron)));
  megatron.pp.reset();
  megatron.cuts = {"model.layers.0", "model.layers.1"};
  check_refused([&] { plan_shard(shard_request(input / "model", temp / "out", megatron)); },
                {.kind = ErrorKind::kUsage, .hint = "without `pipeline-cuts`"});
}

TEST_CASE("Options of megatron style have no effect on models of Hugging Face") {
  const TempDir temp;
  const Input input({.heads = 4, .kv_heads = 4});
  const auto job = plan_shard(shard_request(
      input / "model", temp / "out",
      {.layout = "nxd", .tp = 2, .options = {"qkv-rows=by-projection", "make-vocab-size-divisible-by=64"}}));
  CHECK_THAT(joined_notes(*job), Says("`qkv-rows` has no effect: it applies to `model-source` megatron"));
  CHECK_THAT(joined_notes(*job), Says("`make-vocab-size-divisible-by` has no effect"));
}

}  // namespace
}  // namespace reshard::test
