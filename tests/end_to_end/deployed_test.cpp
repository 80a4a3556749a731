// Weights for inference whose tensors have other names or more elements than the checkpoint's: the layout nxdi, and
// presharded with --pad. testdata/golden/nxdi is what NxD Inference's own classes have made.

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "reshard/engine/check/verify.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/specs/family/family_parser.h"
#include "support/checkpoints.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/spoilers.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

TEST_CASE("Replicated key/value heads that config.json counts as heads of their own are noticed") {
  for (const std::string name : {"nxdi", "vllm"})
    for (const bool fused : {false, true}) {
      CAPTURE(name, fused);
      RequestFields to{.layout = name, .tp = 4};
      if (name == "nxdi" && fused) to.options = {"fuse-qkv"};
      const Input input({}, to, 4);
      CHECK((input.whole() == input.tensors));
      merge_json(input / "out/config.json", {{"num_key_value_heads", 4}});
      for (const auto& entry : fs::recursive_directory_iterator(input.path()))
        if (entry.path().extension() == ".safetensors")  // without our record of what was replicated
          change_tensors(entry.path(), [](TensorMap&) {});
      check_error(input.refusal(), {.tensor = "model.layers.0.self_attn.k_proj.weight",
                                    .says = "ranks 0 and 1 have the same heads",
                                    .hint = "num_key_value_heads"});
    }
}

fs::path golden_model(const char* name) {
  return testdata("golden/nxdi") / name / "original";
}
constexpr const char* kPadded = "llama-6q2kv-tp4-interleaved-pad";

/// A golden model for NxD Inference, over four ranks.
Input nxdi_of(const char* name) {
  return Input({.layout = "nxdi", .tp = 4}, [&](const fs::path& directory) {
    fs::copy(golden_model(name), directory);
    return read_model(directory);
  });
}

TEST_CASE("Numbers where zeros should be, and a rank's file under another's name, are refused") {
  struct Row {
    const char* tensor;
    std::size_t byte;
    std::uint32_t rank;
    Texts says;
  };
  for (const Row& row :
       // Rank 1 has the query heads 2 and one of zeros: the last 8 of 16 rows of 48 numbers.
       {Row{"layers.0.self_attn.qkv_proj.q_proj.weight",
            2 * 48 * 8 + 5,
            1,
            {"contains values other than zeros in its padding", "[8, 2]"}},
        Row{"rank_util.rank", 0, 3, {"is not the number of 3"}},
        Row{"layers.1.self_attn.qkv_proj.k_proj.weight", 3, 1, {"is a replica of"}}}) {
    CAPTURE(row.tensor);
    const Input input = nxdi_of(kPadded);
    flip_bit(input.rank_file(row.rank), row.tensor, row.byte);
    for (std::uint32_t rank = 0; rank < 4; ++rank)  // as NxD's, which say nothing of themselves
      change_tensors(input.rank_file(rank), [](TensorMap&) {});
    check_error(input.refusal(), {.path = input.rank_file(row.rank), .tensor = row.tensor, .says = row.says});
    const Checkpoint a = read_checkpoint(input.path(), {ConfigUse::kStrict});
    const Checkpoint b = read_checkpoint(input / "model", {ConfigUse::kStrict});
    check_refused([&] { verify(a.map, b.map, {}, {}); }, {.says = row.says});
    check_refused([&] { verify(b.map, a.map, {}, {}); }, {.says = row.says});
  }
}

TEST_CASE("Ranks that have nothing but what pads are written by a run of their own") {
  for (const std::string kind : {"nxdi", "presharded"}) {
    DYNAMIC_SECTION(kind) {
      const Input input({.heads = 5, .kv_heads = 5, .vocab = 6}, {.layout = kind, .tp = 4, .options = {"pad"}});
      RequestFields last = input.to;
      last.options = {"pad", "start-rank=3", "end-rank=3"};
      shard(input / "model", input / "last", last);
      const std::string name = "weights/tp3_sharded_checkpoint.safetensors";
      CHECK((read_weights(input / "last").at(name) == read_weights(input.path()).at(name)));
    }
  }
}

TEST_CASE("That projections are fused is no option without effect") {
  const TempDir temp;
  const RequestFields fused{.layout = "nxdi", .tp = 2, .options = {"fuse-qkv"}};
  const auto job = plan_shard(shard_request(golden_model("llama-tp4"), temp / "out", fused));
  REQUIRE(job->attention);
  CHECK(job->attention->form == AttentionForm::kFused);
  REQUIRE(job->notes.size() == 1);
  CHECK_THAT(job->notes.front(), Says("NxD Inference loads these files"));
}

TEST_CASE("A described model takes NxD Inference's names where its description says that it has them") {
  const fs::path model = golden_model("qwen3-tp4-fused");
  const TempDir temp;
  json family = json::parse(builtin_family("qwen3")->json_text);
  const auto spec = [&] {
    write_file(temp / "spec.json", family.dump(2));
    return read_family(temp / "spec.json");
  };
  const auto sharded = [&](const char* output, const FamilySpec& by) {
    shard(model, temp / output, {.layout = "nxdi", .tp = 4, .family = by});
    return read_weights(temp / output);
  };
  CHECK((sharded("out", spec()) == sharded("built-in", {})));
  json& entries = family["nxd_inference"]["entries"];
  const std::string named = entries.dump();
  entries = json::parse(std::regex_replace(named, std::regex("q_layernorm"), "norm_of_q"));
  const FamilySpec renamed = spec();
  CHECK(sharded("renamed", renamed).begin()->second.count("layers.1.self_attn.norm_of_q.weight") == 1);
  CHECK((consolidated(temp / "renamed", temp / "whole", renamed) == read_model(model)));

  family.erase("nxd_inference");
  check_refused([&] { sharded("none", spec()); },
                {.kind = ErrorKind::kUnsupported, .hint = "dbrx, deepseek_v3, ", .unwritten = temp / "none"});
}

TEST_CASE("NxD Inference's padding keeps pairs of gate and up whole") {
  json family = json::parse(builtin_family("llama")->json_text);
  auto& modules = family["modules"];
  modules.erase(std::remove_if(modules.begin(), modules.end(),
                               [](const json& m) { return m["name"] == "model.layers.*.mlp.gate_proj"; }),
                modules.end());
  for (json& module : modules)
    if (module["name"] == "model.layers.*.mlp.up_proj") {
      module["shape"] = {"2 * intermediate_size", "hidden_size"};
      module["heads"] = "intermediate_size";
    }
  family.erase("fused");
  family.erase("other_names");
  const TinyModel tiny{.intermediate = 90};
  Random random(1);
  TensorMap tensors = random_tensors(tiny, random);
  for (std::uint64_t layer = 0; layer < tiny.layers; ++layer) {
    const std::string mlp = "model.layers." + std::to_string(layer) + ".mlp.";
    tensors.erase(mlp + "gate_proj.weight");
    tensors[mlp + "up_proj.weight"] = random_tensor(random, DType::kBF16, {180, tiny.hidden});
  }
  const TempDir temp;
  write_model(temp / "model", tiny, tensors);
  write_file(temp / "spec.json", family.dump());
  const FamilySpec spec = read_family(temp / "spec.json");
  shard(temp / "model", temp / "out", {.layout = "nxdi", .tp = 4, .family = spec});
  for (const auto& [file, held] : read_weights(temp / "out")) {
    CHECK(held.at("layers.0.mlp.up_proj.weight").shape == Dims{46, tiny.hidden});
    CHECK(held.at("layers.0.mlp.down_proj.weight").shape == Dims{tiny.hidden, 23});
  }
  CHECK((consolidated(temp / "out", temp / "whole", spec) == tensors));
}

TEST_CASE("A described model without attention, and sizes that no model has, are refused") {
  const Input input = nxdi_of(kPadded);
  json family = json::parse(builtin_family("llama")->json_text);
  family.erase("attention");
  family.erase("nxd_inference");
  write_file(input / "spec.json", family.dump());
  const FamilySpec spec = read_family(input / "spec.json");
  const RequestFields described{.layout = "nxdi", .tp = 4, .family = spec};
  check_refused([&] { shard(golden_model("llama-tp4"), input / "o", described); }, {.kind = ErrorKind::kUnsupported});
  check_refused([&] { consolidated(input.path(), input / "whole", spec); }, {.kind = ErrorKind::kUnsupported});
  merge_json(input / "out/config.json", {{"vocab_size", 274877906945}});
  CHECK_THAT(input.refusal().what(), Says("more than any model has"));
}

TEST_CASE("Floating tensors take the dtype of config.json, as NxD Inference gives it to them") {
  const Input input({}, {}, 3, DType::kF32);
  merge_json(input / "model/config.json", {{"torch_dtype", "bfloat16"}});
  const RequestFields to{.layout = "nxdi", .tp = 2};
  const auto job = plan_shard(shard_request(input / "model", input / "out", to));
  CHECK_THAT(joined_notes(*job), Says("are cast to BF16"));
  execute(*job, unsynced());
  CHECK((consolidated(input / "out", input / "whole") ==
         converted(input / "model", input / "cast", {.dtype = DType::kBF16})));
  convert(input / "model", input / "converted", to);
  CHECK((read_weights(input / "converted") == read_weights(input / "out")));
}

TEST_CASE("A dtype in config.json that is none is refused where it is needed, with its key and value") {
  const Input input({}, {}, 4, DType::kF32);
  const fs::path config = input / "model/config.json";
  const json original = json::parse(read_file(config));
  const auto patch = [&](const char* keys) {
    json patched = original;
    patched.update(json::parse(keys));
    write_file(config, patched.dump());
  };
  RequestFields to{.layout = "nxdi", .tp = 2};
  const auto plan = [&] { return plan_shard(shard_request(input / "model", input / "out", to)); };
  const std::pair<const char*, const char*> wrong[] = {
      {R"({"torch_dtype": "bfloat17"})",
       "\"torch_dtype\" is \"bfloat17\", expected the name of a floating-point dtype"},
      {R"({"torch_dtype": "int8"})", "\"torch_dtype\" is \"int8\", expected the name of a floating-point dtype"},
      {R"({"dtype": "torch.bfloat16"})", "\"dtype\" is \"torch.bfloat16\""},
      {R"({"dtype": "", "torch_dtype": "float16"})", "\"dtype\" is \"\""},
      {R"({"dtype": 16})", "\"dtype\" is 16"},
      {R"({"torch_dtype": {"": "float16"}})", "\"torch_dtype\" is an object"}};
  for (const auto& [keys, says] : wrong) {
    DYNAMIC_SECTION(keys) {
      patch(keys);
      check_refused(plan, {.path = config, .says = says});
      check_refused([&] { plan_convert(convert_request(input / "model", input / "out", to)); },
                    {.path = config, .says = says});
      to.dtype = DType::kBF16;  // then it is not needed
      CHECK_NOTHROW(plan_convert(convert_request(input / "model", input / "out", to)));
      to = {.layout = "presharded", .tp = 2};
      const auto job = plan();  // here it is noted
      CHECK_THAT(joined_notes(*job), Says(says) && Says("; `dtype` corrects it"));
    }
  }
  SECTION("\"auto\", which is that of the files") {
    patch(R"({"torch_dtype": "auto"})");
    CHECK_NOTHROW(plan());
    to = {.layout = "presharded", .tp = 2};
    CHECK_THAT(joined_notes(*plan()), !Says("torch_dtype"));
  }
  SECTION("two dtypes, of which transformers takes dtype") {
    patch(R"({"dtype": "bfloat16", "torch_dtype": "float16"})");
    CHECK_THAT(joined_notes(*plan()), Says("are cast to BF16"));
  }
  SECTION("null, which is none") {
    patch(R"({"dtype": null, "torch_dtype": null})");
    CHECK_NOTHROW(plan());
  }
}

TEST_CASE("What these layouts do not have is refused, with what has it") {
  const TempDir temp;
  const auto option = [](const char* layout, const char* text) {
    return RequestFields{.layout = layout, .tp = 4, .options = {text}};
  };
  check_refusals<RequestFields>(
      [&](const RequestFields& to) { shard(golden_model("llama-tp4"), temp / "out", to); },
      {.kind = ErrorKind::kUsage, .unwritten = temp / "out"},
      {{"stages of nxdi", {.layout = "nxdi", .tp = 4, .pp = 2}, {.says = "layout nxdi has no pipeline stages"}},
       {"nxdi by torch",
        {.layout = "nxdi", .format = Format::kPytorch, .tp = 4},
        {.says = "does not support `format` pytorch"}},
       {"nxd in safetensors",
        {.layout = "nxd", .format = Format::kSafetensors, .tp = 4},
        {.says = "does not support `format` safetensors"}},
       {"multipliers of nxdi", option("nxdi", "kv-size-multiplier=2"), {.says = "`kv-size-multiplier`"}},
       {"vocabularies of presharded", option("presharded", "vocab-parallel"), {.says = "`vocab-parallel`"}},
       {"padding of ranks", option("ranks", "pad"), {.says = "`pad`"}},
       {"replication of ranks", option("ranks", "kv-replication=adjacent"), {.says = "`kv-replication`"}},
       {"replication of nxdi", option("nxdi", "kv-replication=adjacent"), {.says = "`kv-replication`"}}});
  check_refused([&] { shard(testdata("golden/experts/jamba/original"), temp / "out", {.layout = "nxdi", .tp = 2}); },
                {.kind = ErrorKind::kUnsupported, .hint = "a layout that keeps the checkpoint's names"});
}

TEST_CASE("Weights for inference that are not of the model beside them are refused by tensor and file") {
  const Input input = nxdi_of(kPadded);
  const std::string config = read_file(input / "out/config.json");
  const std::tuple<const char*, int, const char*> rows[] = {
      {"num_hidden_layers", 1, "not in the model that config.json describes"},
      {"num_hidden_layers", 3, "num_hidden_layers is 3 in config.json"},
      {"vocab_size", 128, "lm_head.weight"},
      {"num_key_value_heads", 3, "self_attn"},
      {"intermediate_size", 44, "mlp"}};
  for (const auto& [key, value, says] : rows) {
    CAPTURE(key, value);
    write_file(input / "out/config.json", config);
    merge_json(input / "out/config.json", {{key, value}});
    CHECK_THAT(input.refusal().what(), Says(says));
  }
}

}  // namespace
}  // namespace reshard::test
