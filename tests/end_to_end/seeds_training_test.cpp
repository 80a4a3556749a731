// Examples of the documents on distributed training and on pipeline parallelism, each under the document's name and line.

#include <fmt/format.h>

#include <set>

#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/layouts.h"
#include "support/models.h"
#include "support/random.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

TinyModel model_for_8_ranks() {
  TinyModel model;
  model.heads = model.kv_heads = 8;
  return model;
}

/// my_training of the document: shards of the end, and those of checkpoint-10, which have other weights.
struct Training {
  TensorMap end, checkpoint_10;
  static constexpr const char* kOtherFiles[] = {"special_tokens_map.json", "tokenizer.json", "tokenizer.model",
                                                "tokenizer_config.json", "training_args.bin"};

  Training(const fs::path& temp, Format format) {
    const TinyModel model = model_for_8_ranks();
    Random random(11);
    for (TensorMap* weights : {&end, &checkpoint_10}) {
      *weights = random_tensors(model, random);
      const fs::path whole = temp / (weights == &end ? "end" : "ten");
      write_model(whole, model, *weights);
      ShardRequest request =
          shard_request(whole, weights == &end ? temp / "my_training" : temp / "my_training/checkpoint-10", 8);
      request.target.format = format;
      shard(request);
      for (const char* name : kOtherFiles) write_file(request.output_directory / name, "x");
      write_file(request.output_directory / "trainer_state.json", "{}");
    }
    write_file(temp / "my_training/all_results.json", "{}");
  }
};

TEST_CASE("distributed-training lines 198 to 200: my_training is consolidated into the weights of its end") {
  for (const Format format : {Format::kSafetensors, Format::kPytorch, Format::kXser}) {
    CAPTURE(name(format));
    const TempDir temp;
    const Training training(temp.path(), format);
    const fs::path run = temp / "my_training", out = temp / "my_training_consolidated_checkpoint";
    CHECK((consolidated(run, out) == training.end));
    for (const char* file : Training::kOtherFiles) CHECK(fs::exists(out / file));
    CHECK_FALSE(fs::exists(out / "checkpoint-10"));
    CHECK_FALSE(fs::exists(out / "tensor_parallel_shards"));
    CHECK((consolidated(run / "checkpoint-10", out) == training.checkpoint_10));
  }
}

TEST_CASE("distributed-training line 202: the directory of the shards folder, or that folder itself") {
  const TempDir temp;
  const Training training(temp.path(), Format::kXser);
  CHECK((consolidated(temp / "my_training/tensor_parallel_shards", temp / "out") == training.end));
  CHECK(fs::exists(temp / "out/tokenizer.json"));
}

TEST_CASE("distributed-training line 161: the format of the consolidated file is safetensors, or PyTorch on request") {
  const TempDir temp;
  const Training training(temp.path(), Format::kPytorch);
  ConsolidateRequest request;
  request.source.path = temp / "my_training";
  for (const auto& [format, file] : {std::pair<std::optional<Format>, const char*>{{}, "model.safetensors"},
                                     {Format::kPytorch, "pytorch_model.bin"}}) {
    request.target.format = format;
    request.output_directory = temp / file;
    consolidate(request);
    CHECK(fs::exists(temp / file / file));
    CHECK((read_whole(temp / file) == training.end));
  }
}

/// The layers in the files of each pipeline rank.
std::vector<std::set<std::uint64_t>> layers_by_rank(const fs::path& output) {
  std::vector<std::set<std::uint64_t>> layers;
  for (const auto& [folder, tensors] : read_ranks(output)) {  // sorted by name, one tensor-parallel rank
    layers.emplace_back();
    for (const auto& [name, tensor] : tensors)
      if (name.starts_with("model.layers.")) layers.back().insert(std::stoull(name.substr(13)));
  }
  return layers;
}

struct Pipeline {
  std::uint64_t layers;
  std::uint32_t pp, vpp;
  std::vector<std::string> cuts;
  std::vector<std::set<std::uint64_t>> expected;
};

TEST_CASE("pipeline-parallelism lines 24 to 62 and 239: stages by even parts, by cuts and interleaved") {
  const Pipeline cases[] = {
      // line 24: as many layers for each rank
      {4, 2, 1, {}, {{0, 1}, {2, 3}}},
      {8, 4, 1, {}, {{0, 1}, {2, 3}, {4, 5}, {6, 7}}},
      // lines 33 and 36: a cut is the last layer of its stage
      {4, 2, 1, {"model.layers.1"}, {{0, 1}, {2, 3}}},
      {4, 3, 1, {"model.layers.0", "model.layers.2"}, {{0}, {1, 2}, {3}}},
      // lines 44 and 70: stage s is on rank s modulo pp
      {4, 2, 2, {}, {{0, 2}, {1, 3}}},
      {8, 2, 4, {}, {{0, 2, 4, 6}, {1, 3, 5, 7}}},
      // line 239: the later ranks get the remainder
      {7, 3, 1, {}, {{0, 1}, {2, 3}, {4, 5, 6}}},
      {5, 2, 1, {}, {{0, 1}, {2, 3, 4}}},
  };
  for (const Pipeline& one : cases) {
    CAPTURE(one.layers, one.pp, one.vpp, one.cuts);
    const TempDir temp;
    TinyModel model;
    model.layers = one.layers;
    Random random(12);
    const TensorMap weights = random_tensors(model, random);
    write_model(temp / "model", model, weights);
    ShardRequest request = shard_request(temp / "model", temp / "out", 1, one.pp);
    request.target.vpp = one.vpp;
    request.target.pipeline_cuts = one.cuts;
    shard(request);
    CHECK(layers_by_rank(temp / "out") == one.expected);
    const auto ranks =
        read_ranks(temp / "out");  // line 62: the embedding is in the first, norm and head are in the last
    CHECK(ranks.begin()->second.count("model.embed_tokens.weight") == 1);
    for (const char* last : {"model.norm.weight", "lm_head.weight"}) CHECK(ranks.rbegin()->second.count(last) == 1);
    CHECK((consolidated(temp / "out", temp / "whole") == weights));
  }
}

}  // namespace
}  // namespace reshard::test
