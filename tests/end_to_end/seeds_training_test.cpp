// Examples of the documents on distributed training and on pipeline parallelism, each under the document's name and line.

#include <set>

#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/input.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// my_training of the document: shards of the end, and those of checkpoint-10, which have other weights.
struct Training {
  static constexpr const char* kOtherFiles[] = {"special_tokens_map.json", "tokenizer.json", "tokenizer.model",
                                                "tokenizer_config.json", "training_args.bin"};

  explicit Training(Format format) {
    for (const auto& [from, to] : {std::pair(&end, run), std::pair(&checkpoint_10, run / "checkpoint-10")}) {
      shard(*from / "model", to, {.format = format, .tp = 8});
      for (const char* name : kOtherFiles) write_file(to / name, "x");
      write_file(to / "trainer_state.json", "{}");
    }
    write_file(run / "all_results.json", "{}");
  }

  Input end{{.heads = 8, .kv_heads = 8}}, checkpoint_10{{.heads = 8, .kv_heads = 8}, {}, 2};
  TempDir temp;
  fs::path run = temp / "my_training", out = temp / "my_training_consolidated_checkpoint";
};

TEST_CASE("distributed-training lines 198 to 202: my_training is consolidated into the weights of its end") {
  for (const Format format : {Format::kSafetensors, Format::kPytorch, Format::kXser}) {
    CAPTURE(name(format));
    const Training training(format);
    for (const fs::path& source : {training.run, training.run / "tensor_parallel_shards"}) {
      CHECK((consolidated(source, training.out) == training.end.tensors));
      for (const char* file : Training::kOtherFiles) CHECK(fs::exists(training.out / file));
      CHECK_FALSE(fs::exists(training.out / "checkpoint-10"));
      CHECK_FALSE(fs::exists(training.out / "tensor_parallel_shards"));
    }
    CHECK((consolidated(training.run / "checkpoint-10", training.out) == training.checkpoint_10.tensors));
  }
}

TEST_CASE("distributed-training line 161: the format of the consolidated file is safetensors, or PyTorch on request") {
  const Training training(Format::kPytorch);
  for (const auto& [format, file] : {std::pair<std::optional<Format>, const char*>{{}, "model.safetensors"},
                                     {Format::kPytorch, "pytorch_model.bin"}}) {
    CHECK((consolidated(training.run, training.out, {.format = format}) == training.end.tensors));
    CHECK(fs::exists(training.out / file));
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
    const Input input(
        {.layers = one.layers},
        {.layout = "ranks", .format = Format::kSafetensors, .tp = 1, .pp = one.pp, .vpp = one.vpp, .cuts = one.cuts},
        12);
    CHECK(layers_by_rank(input.path()) == one.expected);
    // line 62: the embedding is in the first, norm and head are in the last
    const auto ranks = read_ranks(input.path());
    CHECK(ranks.begin()->second.count("model.embed_tokens.weight") == 1);
    for (const char* last : {"model.norm.weight", "lm_head.weight"}) CHECK(ranks.rbegin()->second.count(last) == 1);
    CHECK((input.whole() == input.tensors));
  }
}

TEST_CASE("distributed-training line 96: without parallel embeddings every rank has the embedding and the head whole") {
  struct Case {
    Format format;
    bool tied;
    std::uint64_t vocab;  // 33 rows cannot be split
  };
  for (const Case& each :
       {Case{Format::kPytorch, false, 33}, Case{Format::kXser, true, 32}, Case{Format::kSafetensors, false, 32}}) {
    CAPTURE(name(each.format), each.tied);
    const RequestFields to{
        .layout = "ranks", .format = each.format, .tp = 2, .pp = 2, .options = {"disable-embedding-parallelization"}};
    const Input input({.vocab = each.vocab, .tied = each.tied}, to, 14);
    const TensorData& embedding = input.tensors.at("model.embed_tokens.weight");
    const auto ranks = read_shards(input.path());
    for (const char* rank : {"tp_rank_00_pp_rank_00", "tp_rank_01_pp_rank_00"}) {
      CHECK((ranks.at(rank).at("model.embed_tokens.weight") == embedding));
      CHECK(ranks.at(rank).at("model.layers.0.self_attn.q_proj.weight").shape[0] == 8);
    }
    for (const char* rank : {"tp_rank_00_pp_rank_01", "tp_rank_01_pp_rank_01"})
      CHECK((ranks.at(rank).at("lm_head.weight") == (each.tied ? embedding : input.tensors.at("lm_head.weight"))));
    CHECK((input.whole() == input.tensors));
    if (each.vocab % 2 != 0) continue;
    convert(input.path(), input / "optimum", {.layout = "optimum", .tp = 2, .pp = 1});
    shard(input / "model", input / "direct", {.layout = "optimum", .tp = 2});
    CHECK((read_shards(input / "optimum") == read_shards(input / "direct")));
  }
}

}  // namespace
}  // namespace reshard::test
