// Plans in config.json that make no sense, and models that do not fit theirs.

#include <nlohmann/json.hpp>

#include "reshard/layouts/core/checkpoint.h"
#include "support/checkpoints.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/planned.h"
#include "support/refusals.h"
#include "support/spoilers.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// What differs from kPlannedConfig and its model, and over how many ranks it is sharded.
struct Asked {
  const char* keys = "{}";  // of config.json
  std::uint32_t tp = 2, pp = 1;
  std::pair<const char*, Dims> shape{};  // of another size: the tensor's name
};

std::unique_ptr<Job> plan(const TempDir& temp, const Asked& asked) {
  json config = json::parse(kPlannedConfig);
  const json keys = json::parse(asked.keys);
  for (const auto& [key, value] : keys.items())
    if (value.is_null() && key != "base_model_tp_plan")
      config.erase(key);
    else
      config[key] = value;
  std::vector<Planned> all = tensors_of("model.", true);
  for (Planned& planned : all)
    if (asked.shape.first != nullptr && planned.name == asked.shape.first) planned.shape = asked.shape.second;
  write_planned(temp / "model", all, config);
  return plan_shard(shard_request(temp / "model", temp / "out", asked.tp, asked.pp));
}

TEST_CASE("A plan that makes no sense is refused with its key") {
  const TempDir temp;
  check_refusals<const char*>(
      [&](const char* keys) { plan(temp, {keys}); }, {.path = temp / "model/config.json"},
      {{"a list",
        R"({"base_model_tp_plan": ["layers"]})",
        {.says = "\"base_model_tp_plan\" is [\"layers\"], expected an object"}},
       {"a text",
        R"({"base_model_tp_plan": "colwise"})",
        {.says = "\"base_model_tp_plan\" is \"colwise\", expected an object"}},
       {"a misspelt word",
        R"({"base_model_tp_plan": {"layers.*.mlp.up": "colwize"}})",
        {.says = "the plan of \"layers.*.mlp.up\" is \"colwize\", expected one of colwise, rowwise, packed_colwise",
         .hint = "did you mean \"colwise\"?"}},
       {"a list for a word",
        R"({"base_model_tp_plan": {"layers.*.mlp.up": ["colwise"]}})",
        {.says = "the plan of \"layers.*.mlp.up\" is [\"colwise\"]"}},
       {"a number for a word", R"({"_tp_plan": {"lm_head": 1}})", {.says = "_tp_plan: the plan of \"lm_head\" is 1"}},
       {"other layers",
        R"({"base_model_tp_plan": {"blocks.*.up": "colwise"}, "base_model_pp_plan": null})",
        {.says = "no tensor is called blocks.0."}},
       {"a list of stages", R"({"base_model_pp_plan": []})", {.says = "\"base_model_pp_plan\" is []"}},
       {"stages without layers",
        R"({"base_model_pp_plan": {"norm": [[], []]}})",
        {.says = "the key \"layers\" is missing"}},
       {"a stage without outputs",
        R"({"base_model_pp_plan": {"layers": [[]]}})",
        {.says = "two lists: the module's inputs"}},
       {"heads as a text", R"({"num_attention_heads": "8"})", {.says = "\"num_attention_heads\" is \"8\""}},
       {"too many layers", R"({"num_hidden_layers": 100000})", {.says = "\"num_hidden_layers\" is 100000"}}});
}

TEST_CASE("A model that its plan or the ranks do not fit is refused, with the degrees that do") {
  const TempDir temp;
  const std::string four_groups = "dim 0 has 4 groups of heads, which 8 ranks do not divide";
  check_refusals<Asked>(
      [&](const Asked& asked) { plan(temp, asked); }, {},
      {{"no plan",
        {R"({"base_model_tp_plan": null})"},
        {.kind = ErrorKind::kUnsupported, .hint = "base_model_tp_plan"}},
       {"more ranks than key/value heads",
        {.tp = 8},
        {.kind = ErrorKind::kUsage,
         .tensor = "model.layers.0.self_attn.k_proj.weight",
         .says = four_groups,
         .hint = "heads are not replicated",
         .hint_end = "TP degrees that work for this model: 1, 2, 4"}},
       {"key/value heads that head_dim counts, as where layers differ",
        {R"({"num_key_value_heads": null, "head_dim": 4})", 8},
        {.kind = ErrorKind::kUsage, .says = four_groups}},
       {"a key that nothing is read from", {R"({"head_dim": 0})", 8}, {.kind = ErrorKind::kUsage, .says = four_groups}},
       {"heads that nothing counts",
        {R"({"num_attention_heads": null, "num_key_value_heads": null})", 16},
        {.kind = ErrorKind::kUsage,
         .says = "which 16 ranks do not divide",
         .hint_end = "TP degrees that work for this model: 1, 2, 4, 8"}},
       {"a size that falls into no heads",
        {R"({"num_key_value_heads": 3})"},
        {.tensor = "model.layers.0.self_attn.k_proj.weight",
         .says = "dim 0 has 16 elements, which 3 heads do not divide"}},
       {"a size that falls into no halves",
        {.tp = 1, .shape = {"model.layers.1.mlp.gate_up_proj.bias", {23}}},
        {.tensor = "model.layers.1.mlp.gate_up_proj.bias",
         .says = "dim 0 has 23 elements, which base_model_tp_plan splits into two halves"}},
       {"quantised weights",
        {R"({"quantization_config": {"quant_method": "fp8"}})"},
        {.kind = ErrorKind::kUnsupported, .says = "does not say how scales are split", .hint = "`spec`"}},
       {"a layer that has no tensors",
        {R"({"num_hidden_layers": 5})"},
        {.says = "some of the model's 5 layers have no tensors: model.layers.{3-4}"}}});
}

TEST_CASE("Heads that nothing counts give one note where the ranks may split them, and unknown stages another") {
  const TempDir temp;
  const char* const renamed = R"({"num_attention_heads": null, "n_head": 8})";  // those of keys and values are counted
  const char* const uncounted = R"({"num_attention_heads": null, "num_key_value_heads": null})";
  const char* const finale = R"({"base_model_pp_plan": {"finale": [[], []], "layers": [["x"], ["x"]],
      "embed_tokens": [["x"], ["x"]], "embed_positions": [["x"], ["x"]]}})";
  for (const Asked& asked : {Asked{.tp = 4}, Asked{renamed, 4}, Asked{uncounted, 1}})
    CHECK_THAT(joined_notes(*plan(temp, asked)), !Says("attention heads"));
  CHECK_THAT(
      joined_notes(*plan(temp, {uncounted, 8})),
      Says("config.json has no num_attention_heads, so it was not checked whether `tp` 8 splits attention heads; add "
           "num_attention_heads and num_key_value_heads\n"));
  CHECK_THAT(joined_notes(*plan(temp, {"{}", 1, 2})),
             !Says("base_model_pp_plan in config.json") && !Says("pipeline stage"));
  CHECK_THAT(joined_notes(*plan(temp, {finale, 1, 2})),
             Says("base_model_pp_plan in config.json names modules that do not exist: finale\n") &&
                 Says("on the first pipeline stage, because no other stage is declared: model.final.weight; "
                      "base_model_pp_plan in config.json names the modules of the last stage\n"));
  CHECK_THAT(joined_notes(*plan(temp, {finale, 1, 1})), !Says("pipeline stage"));
}

TEST_CASE("Sizes of a planned model that cannot be padded are refused") {
  const TempDir temp;
  const auto padded = [&](std::uint32_t tp) {
    plan_shard(shard_request(temp / "model", temp / "out", {.layout = "presharded", .tp = tp, .options = {"pad"}}));
  };
  plan(temp, {});
  check_refused([&] { padded(5); }, {.kind = ErrorKind::kUsage, .says = "cannot be padded"});  // packed with another
  merge_json(temp / "model/config.json", {{"quantization_config", {{"quant_method", "fp8"}}}});
  check_refused([&] { padded(2); }, {.kind = ErrorKind::kUnsupported});

  // Many sizes that no model has, before they take memory.
  TensorMap tensors;
  for (std::uint64_t layer = 0; layer < 16; ++layer)
    tensors["model.layers." + std::to_string(layer) + ".w.weight"] = {DType::kBF16, {16777213 - 2 * layer, 0}, {}};
  write_safetensors(temp / "model/model.safetensors", tensors);
  write_file(temp / "model/config.json",
             R"({"model_type": "newcomer", "num_hidden_layers": 16, "base_model_tp_plan": {"layers.*.w": "colwise"}})");
  CHECK_THAT(check_refused([&] { padded(4); }, {}).tensor(), Says(".w.weight"));
}

TEST_CASE("A name of layers in layers without end takes no time") {
  const TempDir temp;
  TensorMap tensors = write_planned(temp / "model", tensors_of("model.", true), json::parse(kPlannedConfig));
  std::string name = "model.";
  for (int i = 0; i < 20000; ++i) name += "layers.0.";
  tensors[name + "weight"] = {DType::kBF16, {1}, "ab"};
  write_safetensors(temp / "model/model.safetensors", tensors);
  CHECK(read_checkpoint(temp / "model", {ConfigUse::kLenient}).model);
}

TEST_CASE("Tensors named as filler are no filler") {
  const Input input({.layout = "presharded", .tp = 2, .options = {"pad"}}, [](const fs::path& directory) {
    TensorMap tensors{{"model.layers.0.w.weight", {DType::kBF16, {5, 4}, std::string(40, 'w')}},
                      {"model.layers.0.w.weight (zeros)", {DType::kBF16, {3, 4}, std::string(24, 'z')}}};
    write_file(directory / "config.json", R"({"model_type": "newcomer", "num_hidden_layers": 1,
                                              "base_model_tp_plan": {"layers.*.w": "colwise"}})");
    write_safetensors(directory / "model.safetensors", tensors);
    return tensors;
  });
  CHECK(read_tensors(input.rank_file(1)).at("model.layers.0.w.weight").bytes ==
        std::string(16, 'w') + std::string(8, '\0'));
  CHECK((input.whole() == input.tensors));
}

TEST_CASE("The last stage of a planned model is missed, by the metadata and without") {
  const Input input({.layout = "ranks", .tp = 2, .pp = 3}, [](const fs::path& directory) {
    return write_planned(directory, tensors_of("model.", true), json::parse(kPlannedConfig));
  });
  const fs::path folder = input / "out/tensor_parallel_shards";
  for (const char* name : {"tp_rank_00_pp_rank_02", "tp_rank_01_pp_rank_02", "mp_metadata_pp_rank_2.json"})
    fs::remove_all(folder / name);
  CHECK_THAT(input.refusal().what(),
             Says("its metadata records that there are 3 pipeline ranks, but the folder contains 2"));
  for (const std::uint32_t tp_rank : {0, 1})  // as NxD's, which say nothing
    for (const std::uint32_t pp_rank : {0, 1}) change_tensors(input.rank_file(tp_rank, pp_rank), [](TensorMap&) {});
  CHECK_THAT(input.refusal().what(), Says("model.layers.{2}"));
}

}  // namespace
}  // namespace reshard::test
