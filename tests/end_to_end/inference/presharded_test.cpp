// The layout presharded, as NxD's shard_checkpoint writes it: testdata/golden/preshard.

#include <nlohmann/json.hpp>

#include "support/architectures.h"
#include "support/checkpoints.h"
#include "support/families.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

const fs::path kModel = testdata("golden/preshard/llama-tp4/original");

/// For some of 4 ranks.
RequestFields presharded(const std::vector<std::string>& options = {}) {
  return {.layout = "presharded", .tp = 4, .options = options};
}

TEST_CASE("Ranks are pre-sharded by several runs into one directory, and are the same as those of one") {
  const TempDir temp;
  shard(kModel, temp / "one", presharded());
  shard(kModel, temp / "several", presharded({"end-rank=0"}));
  shard(kModel, temp / "several", presharded({"start-rank=1", "end-rank=2"}));  // config.json is there, and the same
  shard(kModel, temp / "several", presharded({"start-rank=3", "end-rank=3"}));
  CHECK((snapshot(temp / "several") == snapshot(temp / "one")));

  fs::remove(temp / "several/weights/tp1_sharded_checkpoint.safetensors");
  check_refused([&] { consolidated(temp / "several", temp / "whole"); }, {.says = "tp1_sharded_checkpoint"});
}

TEST_CASE(
    "Files in serialize_path itself are read as those in weights/ are, with a config.json next to them or elsewhere") {
  const TempDir temp;
  const auto job = plan_shard(shard_request(kModel, temp / "out", presharded()));
  CHECK(job->notes.back().text.find("the files in weights/ like those of its shard_checkpoint") != std::string::npos);
  execute(*job, unsynced());
  fs::copy(temp / "out/weights", temp / "serialize_path");
  CHECK((consolidated(temp / "serialize_path", temp / "one", {.config = kModel}) == read_model(kModel)));
  fs::copy(kModel / "config.json", temp / "serialize_path/config.json");
  CHECK((consolidated(temp / "serialize_path", temp / "two") == read_model(kModel)));
  CHECK((converted(temp / "serialize_path", temp / "three") == read_model(kModel)));
}

TEST_CASE("Of a part of the ranks, the bytes that are said to be read are those of the rows that they have") {
  std::uint64_t expected = 0;
  for (const auto& [name, tensor] : read_model(kModel)) {
    const bool rows =
        tensor.shape.size() == 2 && name.find("o_proj") == name.npos && name.find("down_proj") == name.npos;
    expected += tensor.bytes.size() / (rows ? 4 : 1);
  }
  const TempDir temp;
  const auto job = plan_shard(shard_request(kModel, temp / "out", presharded({"start-rank=2", "end-rank=2"})));
  CHECK(job->program.read_bytes == expected);
}

TEST_CASE("Heads and packed matrices do not keep a model from being pre-sharded") {
  // 4 key/value heads over 8 ranks: rows are cut, heads or not.
  const TempDir temp;
  shard(kModel, temp / "eight", {.layout = "presharded", .tp = 8});
  CHECK((consolidated(temp / "eight/weights", temp / "whole") == read_model(kModel)));
  convert(temp / "eight", temp / "ranks", {.layout = "ranks", .format = Format::kSafetensors, .tp = 2});
  shard(kModel, temp / "direct", {.tp = 2});
  CHECK((read_ranks(temp / "ranks") == read_ranks(temp / "direct")));
}

/// A tensor of gate and up in pairs of rows or columns, or of the linear behind them.
struct Paired {
  std::string name;
  std::size_t dim;
  std::uint64_t per_rank;  // elements along `dim`, of 4 ranks
  std::string filler = std::string(2, '\0');
};

/// A model with 90 or 96 elements between them.
struct PairedModel {
  std::string title;
  nlohmann::json config;
  std::vector<Paired> tensors;
};

std::vector<PairedModel> paired_models() {
  const auto with = [](nlohmann::json config, const nlohmann::json& more) {
    config.update(more);
    return config;
  };
  const nlohmann::json sizes = {{"hidden_size", 64},         {"num_hidden_layers", 1}, {"num_attention_heads", 4},
                                {"num_key_value_heads", 4},  {"head_dim", 16},         {"vocab_size", 64},
                                {"num_local_experts", 3},    {"n_routed_experts", 3},  {"intermediate_size", 90},
                                {"ff_intermediate_size", 90}};
  const std::string lowest = "\x7f\xff";  // a bfloat16: biases along the outputs are padded with it
  const std::string experts = "model.layers.0.mlp.experts.", mlp = "model.layers.0.mlp.";
  return {{"gpt_oss",
           with(sizes, {{"model_type", "gpt_oss"}}),
           {{experts + "gate_up_proj", 2, 46}, {experts + "gate_up_proj_bias", 1, 46}, {experts + "down_proj", 1, 23}}},
          {"gpt_oss in MXFP4, whose blocks of 32 stay whole",
           with(sizes, {{"model_type", "gpt_oss"},
                        {"intermediate_size", 96},
                        {"quantization_config", {{"quant_method", "mxfp4"}}}}),
           {{experts + "gate_up_proj_blocks", 1, 64},
            {experts + "gate_up_proj_scales", 1, 64},
            {experts + "gate_up_proj_bias", 1, 64},
            {experts + "down_proj_blocks", 2, 1},
            {experts + "down_proj_scales", 2, 1}}},
          {"phi3small",
           with(sizes, {{"model_type", "phi3small"}}),
           {{mlp + "up_proj.weight", 0, 46}, {mlp + "up_proj.bias", 0, 46, lowest}, {mlp + "down_proj.weight", 1, 23}}},
          {"inkling_text",
           with(sizes, {{"model_type", "inkling_text"}}),
           {{"model.llm.layers.0.mlp.experts.w13_weight", 1, 46},
            {"model.llm.layers.0.mlp.experts.w2_weight", 2, 23},
            {"model.llm.layers.0.mlp.shared_experts.shared_w13_weight", 1, 46},
            {"model.llm.layers.0.mlp.shared_experts.shared_w2_weight", 2, 23}}}};
}

TEST_CASE("Padding keeps pairs of gate and up whole, and each rank's pairs belong to its part of the next linear") {
  for (const PairedModel& model : paired_models()) DYNAMIC_SECTION(model.title) {
      const Input input(presharded({"pad"}), [&](const fs::path& directory) {
        Random random(1);
        return write_configured(model.config, directory, random);
      });
      CHECK((input.whole() == input.tensors));
      for (std::uint32_t rank = 0; rank < 4; ++rank) {
        const TensorMap held = read_tensors(input.rank_file(rank));
        for (const Paired& tensor : model.tensors) {
          CAPTURE(rank, tensor.name);
          const std::uint64_t begin = rank * tensor.per_rank;
          CHECK((held.at(tensor.name) ==
                 slices(input.tensors.at(tensor.name), tensor.dim, {{begin, begin + tensor.per_rank}}, tensor.filler)));
        }
      }
      const auto job = plan_shard(shard_request(input / "model", input / "again", presharded({"pad"})));
      CHECK_THAT(joined_notes(*job), !Says("split within heads"));
    }
}

TEST_CASE("What the layout presharded does not have is refused") {
  const TempDir temp;
  check_refusals<RequestFields>(
      [&](const RequestFields& fields) { plan_shard(shard_request(kModel, temp / "out", fields)); },
      {.kind = ErrorKind::kUsage},
      {{"stages", {.layout = "presharded", .tp = 4, .pp = 2}, {.says = "pipeline stages"}},
       {"a format",
        {.layout = "presharded", .format = Format::kPytorch, .tp = 4},
        {.says = "does not support `format` pytorch"}},
       {"a fused projection", presharded({"fuse-qkv"}), {.says = "`fuse-qkv`"}},
       {"a multiplier", presharded({"kv-size-multiplier=2"}), {.says = "`kv-size-multiplier`"}},
       {"an end beyond the ranks", presharded({"end-rank=4"}), {.says = "the ranks are 0 to 3"}},
       {"a start beyond the ranks", presharded({"start-rank=4"}), {.says = "the ranks are 0 to 3"}},
       {"a start after the end",
        presharded({"start-rank=2", "end-rank=1"}),
        {.says = "`start-rank` 2 is after `end-rank` 1"}},
       {"some ranks of another layout",
        {.layout = "ranks", .tp = 4, .options = {"end-rank=1"}},
        {.says = "layout ranks has no option `end-rank`"}}});
}

}  // namespace
}  // namespace reshard::test
