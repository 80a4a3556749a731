// Rank files that describe themselves, as optimum-neuron 0.0.15 to 0.0.21 saved them: "sharded_metadata", and in 0.0.21
// "gqa_qkv_metadata", next to "model" in checkpoint.pt or the xser file.

#include <fmt/format.h>

#include <functional>

#include "support/checkpoints.h"
#include "support/families.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/saved_trees.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

Json kind_of(std::optional<std::size_t> dim) {
  if (!dim) return {{"kind", "tied"}, {"partition_dim", nullptr}};
  return {{"kind", "sharded"}, {"partition_dim", *dim}};
}

/// One rank file that is being made.
SavedTree rank_tree(const TensorMap& held, const Json& sharded_metadata) {
  SavedTree tree;
  tree.structure = {{"model", Json::object()}, {"sharded_metadata", sharded_metadata}};
  for (const auto& [name, data] : held) {
    tree.structure["model"][name] = {{"tensor", reshard::name(data.dtype)}, {"shape", data.shape}};
    tree.tensors["model/" + name] = data;
  }
  return tree;
}

void write_rank(const fs::path& checkpoint, std::uint32_t tp_rank, std::uint32_t pp_rank, const SavedTree& tree,
                bool xser = false) {
  const fs::path path =
      checkpoint / "tensor_parallel_shards" / fmt::format("tp_rank_{:02}_pp_rank_{:02}", tp_rank, pp_rank);
  write_saved_tree(xser ? path : path / "checkpoint.pt", tree, xser);
}

/// A model that no family describes, over two ranks.
struct Custom {
  TensorMap whole;
  std::map<std::string, std::optional<std::size_t>> dims;

  Custom() {
    Random random(5);
    const auto add = [&](const std::string& name, const Dims& shape, std::optional<std::size_t> dim) {
      whole[name] = random_tensor(random, DType::kF32, shape);
      dims[name] = dim;
    };
    add("model.embed_tokens.weight", {64, 32}, 0);
    add("model.layers.0.up.weight", {48, 32}, 0);
    add("model.layers.0.down.weight", {32, 48}, 1);
    add("model.norm.weight", {32}, std::nullopt);
  }

  TensorMap held_by(std::uint32_t rank) const {
    TensorMap held;
    for (const auto& [name, data] : whole) held[name] = rank_slice(data, dims.at(name), 2, rank);
    return held;
  }
  Json metadata() const {
    Json json = Json::object();
    for (const auto& [name, dim] : dims) json[name] = kind_of(dim);
    return json;
  }
  SavedTree tree(std::uint32_t rank) const { return rank_tree(held_by(rank), metadata()); }
  void write(const fs::path& checkpoint, bool xser = false) const {
    for (std::uint32_t rank = 0; rank < 2; ++rank) write_rank(checkpoint, rank, 0, tree(rank), xser);
  }
};

void write_config(const fs::path& checkpoint, const Json& more = Json::object()) {
  Json config = {{"model_type", "your_model"}, {"vocab_size", 64}, {"hidden_size", 32}, {"num_hidden_layers", 1}};
  config.update(more);
  write_file(checkpoint / "config.json", config.dump());
}

Json plan(const char* up, const char* down) {
  return {{"base_model_tp_plan", {{"layers.*.up", up}, {"layers.*.down", down}}}};
}

Request request_for(const TempDir& temp) {
  return consolidate_request(temp / "run", temp / "whole");
}

Error refused(const TempDir& temp) {
  return error_of([&] { consolidate(request_for(temp)); });
}

TensorMap whole_run(const TempDir& temp) {
  return consolidated(temp / "run", temp / "whole");
}

TEST_CASE("Metadata inside rank files describes a model of any type, with a config.json and without") {
  const Custom custom;
  for (const bool xser : {false, true})
    for (const bool config : {false, true}) {
      const TempDir temp;
      custom.write(temp / "run", xser);
      if (config) write_config(temp / "run");
      CHECK((whole_run(temp) == custom.whole));
    }
}

TEST_CASE("Rank files that describe themselves get no note per rank") {
  const TempDir temp;
  Custom().write(temp / "run");
  const std::vector<std::string> notes = plan_consolidate(request_for(temp))->notes.texts();
  REQUIRE(notes.size() == 3);
  CHECK_THAT(notes[0], Says("there is no config.json"));
  CHECK_THAT(notes[1], Says("swapped between ranks cannot be detected"));
  CHECK_THAT(notes[2], Says("missing last ranks cannot be detected"));
}

TEST_CASE("What else rank files contain is one note for all of them") {
  const TempDir temp;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    SavedTree tree = Custom().tree(rank);
    tree.structure["epoch"] = 3;
    write_rank(temp / "run", rank, 0, tree);
  }
  write_config(temp / "run");
  const std::vector<std::string> notes = plan_consolidate(request_for(temp))->notes.texts();
  REQUIRE(notes.size() == 4);
  CHECK_THAT(notes[0], Says("tp_rank_00_pp_rank_00/checkpoint.pt and 1 other file: skipped") && Says(": epoch"));
  CHECK_THAT(notes[1], Says("only the metadata describes the tensors"));
  CHECK_THAT(notes[3], Says("there is no tokenizer"));
}

TEST_CASE("Metadata inside rank files decides over a plan in config.json") {
  const TempDir temp;
  Custom custom;
  for (const char* down : {"rowwise", "colwise"}) {  // the embedding is split, though the plan does not name it
    custom.write(temp / "run");
    write_config(temp / "run", plan("colwise", down));
    CHECK((whole_run(temp) == custom.whole));
  }
  custom.dims["model.embed_tokens.weight"] = std::nullopt;  // whole on each rank, though the plan splits it
  Json right = plan("colwise", "rowwise");
  right["base_model_tp_plan"]["embed_tokens"] = "embedding_rowwise";
  custom.write(temp / "run");
  write_config(temp / "run", right);
  CHECK((whole_run(temp) == custom.whole));
}

TEST_CASE("A last rank that is missing shows in the sizes that config.json states") {
  for (const bool planned : {false, true}) {
    const TempDir temp;
    Custom().write(temp / "run");
    fs::remove_all(temp / "run/tensor_parallel_shards/tp_rank_01_pp_rank_00");
    write_config(temp / "run", planned ? plan("colwise", "rowwise") : Json::object());
    check_error(refused(temp), {.path = temp / "run/tensor_parallel_shards",
                                .says = "\"vocab_size\": 64",
                                .hint = "the last ranks are missing"});
  }
}

TEST_CASE("Half of an inner size is not taken for it because the vocabulary is a multiple of it") {
  Custom custom;
  custom.dims["model.embed_tokens.weight"] = std::nullopt;  // not parallel, so that its size is whole
  const TempDir temp;
  custom.write(temp / "run");
  fs::remove_all(temp / "run/tensor_parallel_shards/tp_rank_01_pp_rank_00");
  write_config(temp / "run", {{"intermediate_size", 48}});
  CHECK_THAT(refused(temp).what(), Says("\"intermediate_size\": 48"));
  write_config(temp / "run", {{"intermediate_size", 32}});
  CHECK_FALSE(plan_consolidate(request_for(temp))->notes.empty());  // nothing contradicts it
  custom.write(temp / "run");
  write_config(temp / "run", {{"intermediate_size", 48}});
  CHECK((whole_run(temp) == custom.whole));
}

TEST_CASE("Ranks whose metadata differs are refused") {
  const TempDir temp;
  using Change = std::function<void(Json&)>;
  check_refusals<Change>(
      [&](const Change& change) {
        Custom().write(temp / "run");
        SavedTree tree = Custom().tree(1);
        change(tree.structure);
        write_rank(temp / "run", 1, 0, tree);
        consolidate(request_for(temp));
      },
      {.path = temp / "run/tensor_parallel_shards/tp_rank_01_pp_rank_00/checkpoint.pt"},
      {{"another dim",
        [](Json& file) { file["sharded_metadata"]["model.layers.0.up.weight"] = kind_of(1); },
        {.tensor = "model.layers.0.up.weight", .says = "contradicts that of"}},
       {"a parameter less",
        [](Json& file) { file["sharded_metadata"].erase("model.norm.weight"); },
        {.says = "contradicts that of"}},
       {"none", [](Json& file) { file.erase("sharded_metadata"); }, {.says = "contains no sharded_metadata"}},
       {"a list",
        [](Json& file) { file["sharded_metadata"] = Json::array({1}); },
        {.says = "no \"sharded_metadata\""}}});
}

TEST_CASE("Different matrices that the metadata calls tied are not replicas, whatever the request says of replicas") {
  Custom custom;  // as before 0.0.21, when each rank's key/value heads counted as all of them
  const TempDir temp;
  custom.dims["model.layers.0.up.weight"] = std::nullopt;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    TensorMap held = custom.held_by(rank);
    held["model.layers.0.up.weight"] = rank_slice(custom.whole["model.layers.0.up.weight"], 0, 2, rank);
    write_rank(temp / "run", rank, 0, rank_tree(held, custom.metadata()));
  }
  for (const Replicas replicas : {Replicas::kDrift, Replicas::kFirst}) {
    RunOptions options = unsynced();
    options.replicas = replicas;
    check_refused([&] { consolidate(request_for(temp), options); }, {.tensor = "model.layers.0.up.weight",
                                                                     .hint = "optimum-neuron before 0.0.21",
                                                                     .unwritten = temp / "whole/model.safetensors"});
  }
}

TEST_CASE("Second names of parameters and buffers need not be listed") {
  Custom custom;
  Random random(6);
  TensorMap expected = custom.whole;
  expected["model.position_ids"] = random_tensor(random, DType::kF32, {1, 8});
  const auto write = [&](const fs::path& checkpoint, std::uint32_t damaged_rank) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      TensorMap held = custom.held_by(rank);
      held["lm_head.weight"] = held["decoder.embed.weight"] = held["model.embed_tokens.weight"];
      held["model.position_ids"] = expected["model.position_ids"];
      if (rank == damaged_rank) held["decoder.embed.weight"].bytes[5] ^= 1;
      write_rank(checkpoint, rank, 0, rank_tree(held, custom.metadata()));
    }
  };
  const TempDir temp;
  write(temp / "run", 2);
  CHECK((whole_run(temp) == expected));
  const auto job = plan_consolidate(request_for(temp));
  for (const char* name : {"lm_head.weight", "decoder.embed.weight"})
    CHECK_THAT(joined_notes(*job),
               Says(name + std::string(" is tied to model.embed_tokens.weight: the two are compared")));
  for (const std::uint32_t rank : {0, 1}) {
    const TempDir other;
    write(other / "run", rank);
    check_error(refused(other), {.tensor = "decoder.embed.weight"});
  }
}

/// Two stages, each of which lists the parameters of both, those of the other as not split.
void write_stages(const fs::path& checkpoint, const Custom& custom, std::uint32_t stages) {
  for (std::uint32_t pp_rank = 0; pp_rank < stages; ++pp_rank)
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      TensorMap held;
      Json metadata = custom.metadata();
      for (const auto& [name, data] : custom.held_by(rank))
        if ((name == "model.embed_tokens.weight" ? 0u : 1u) == pp_rank)
          held[name] = data;
        else
          metadata[name] = kind_of(std::nullopt);
      write_rank(checkpoint, rank, pp_rank, rank_tree(held, metadata));
    }
}

TEST_CASE("A stage's metadata counts for its own parameters alone") {
  const Custom custom;
  const TempDir temp;
  write_stages(temp / "run", custom, 2);
  CHECK((whole_run(temp) == custom.whole));
  CHECK(plan_consolidate(request_for(temp))->notes.size() == 3);
}

TEST_CASE("A stage that is missing shows in what the others list") {
  const TempDir temp;
  write_stages(temp / "run", Custom(), 1);
  check_error(refused(temp), {.tensor = "model.layers.0.down.weight",
                              .says = "no rank file contains it",
                              .hint = "the last pipeline ranks are missing"});
}

TEST_CASE("Grouped-query attention is read by gqa_qkv_metadata, without a config.json") {
  constexpr std::uint32_t kTp = 4;
  const Input input({.intermediate = 32}, {.layout = "ranks", .tp = kTp}, 7);
  const TinyModel& model = input.model;
  Json names = Json::object(), outputs = Json::array();
  for (std::uint64_t layer = 0; layer < model.layers; ++layer) {
    const std::string module = fmt::format("model.layers.{}.self_attn.", layer);
    for (const char* letter : {"q", "k", "v"})
      names[module + letter + "_proj.weight"] = module + "qkv_proj.weight_" + letter;
    outputs.push_back(module + "o_proj.weight");
  }
  for (std::uint32_t rank = 0; rank < kTp; ++rank) {
    TensorMap held = read_tensors(input.rank_file(rank));  // with the linears that are fused there apart
    std::erase_if(held, [](const auto& entry) { return entry.first.find("gate_up") != std::string::npos; });
    for (const auto& [name, data] : input.tensors)
      if (name.find("gate_proj") != name.npos || name.find("up_proj") != name.npos)
        held[name] = rank_slice(data, 0, kTp, rank);
    Json metadata = Json::object();
    for (const auto& [name, data] : held) {
      const bool across = name.find("o_proj") != std::string::npos || name.find("down_proj") != std::string::npos;
      const bool norm = name.find("norm") != std::string::npos;
      metadata[name] = kind_of(norm ? std::nullopt : std::optional<std::size_t>(across ? 1 : 0));
    }
    SavedTree tree = rank_tree(held, metadata);
    tree.structure["gqa_qkv_metadata"] = {{"original_names_to_gqa_qkv_names", names},
                                          {"output_projections_names", outputs},
                                          {"num_attention_heads", model.heads},
                                          {"num_key_value_heads", model.kv_heads},
                                          {"kv_size_multiplier", 2}};
    write_rank(input / "run", rank, 0, tree);
  }
  CHECK((whole_run(input.temp) == input.tensors));
}

}  // namespace
}  // namespace reshard::test
