#include <nlohmann/json.hpp>

#include "reshard/base/strings.h"
#include "reshard/plan/plan.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// A model in memory, and requests to shard it.
struct MemoryModel {
  explicit MemoryModel(const TinyModel& model = {}, const std::function<void(TensorMap&)>& change = {}) {
    Random random(4);
    TensorMap tensors = random_tensors(model, random);
    if (change) change(tensors);
    write_model(files, "model", model, tensors);
  }
  Request request(const RequestFields& fields) const { return shard_request("model", "out", fields); }
  std::unique_ptr<Job> plan(const RequestFields& fields) const { return plan_shard(files, request(fields)); }
  Error check_unplanned(const RequestFields& fields, const Refusal& refusal) const {
    return check_refused([&] { plan(fields); }, refusal);
  }

  mutable MemoryFiles files;
};

TEST_CASE("A mesh that a model does not fit is a usage error, with the degrees that work") {
  const std::string degrees = "TP degrees that work for this model: ";
  const TinyModel deep{.layers = 5}, many{.hidden = 1,
                                          .intermediate = 5000,
                                          .layers = 1,
                                          .heads = 5000,
                                          .kv_heads = 5000,
                                          .head_dim = 2,
                                          .vocab = 5000};
  struct Row {
    const char* title;
    TinyModel model;
    RequestFields fields;
    Refusal refusal;
  };
  const Row rows[] = {
      {"heads",
       {.intermediate = 18, .heads = 6, .kv_heads = 6, .vocab = 36},
       {.tp = 4},
       {.hint = degrees + "1, 2, 3, 6"}},
      {"a vocabulary",
       {.vocab = 35},
       {.tp = 2},
       {.tensor = "model.embed_tokens.weight",
        .says = "dim 0 has 35 elements, which 2 ranks do not divide",
        .hint = degrees + "1"}},
      {"a multiplier",
       {.heads = 16, .kv_heads = 2},
       {.tp = 8, .options = {"kv-size-multiplier=16"}},
       {.says = {"(16 query, 2 key/value)", "multiplier of 16"}, .hint = "multipliers that work for `tp` 8: 4, 8"}},
      {"more stages than layers", {}, {.tp = 1, .pp = 2, .vpp = 2}, {.says = {"2 layers", "4 pipeline stages"}}},
      {"cuts", deep, {.tp = 1, .pp = 3, .cuts = {"model.layers.3", "model.layers.1"}}, {.says = "does not come after"}},
      {"cuts without pp",
       deep,
       {.tp = 1, .vpp = 2, .cuts = {"model.layers.1", "model.layers.2"}},
       {.says = "`vpp` 2 does not divide"}},
      // Degrees of zero, and those that no machine has: a division by zero would end the program.
      {"more ranks than can be read back", many, {.tp = 5000}, {}},
      {"stages whose number overflows", {}, {.tp = 1, .pp = 65536, .vpp = 65536}, {}},
      {"no rank", {}, {.tp = 0}, {}},
      {"no stage", {}, {.tp = 1, .pp = 0}, {}},
      {"no virtual stage", {}, {.tp = 1, .vpp = 0}, {}}};
  for (const Row& row : rows) DYNAMIC_SECTION(row.title) {
      const Error error =
          MemoryModel(row.model).check_unplanned(row.fields, with_common(row.refusal, {.kind = ErrorKind::kUsage}));
      if (row.refusal.tensor) CHECK(error.hint() == row.refusal.hint.parts.front());
    }
}

TEST_CASE("Every degree that an error says works does work") {
  const MemoryModel model({.heads = 12, .kv_heads = 2, .vocab = 48});
  const std::string lead = "TP degrees that work for this model: ";
  const std::string hint = model.check_unplanned({.tp = 5}, {.kind = ErrorKind::kUsage, .hint = lead}).hint();
  const auto degrees = split(hint.substr(hint.find(lead) + lead.size()), ',');
  CHECK(degrees.size() >= 3);
  for (const std::string& degree : degrees) {
    INFO(hint << " → " << degree);
    CHECK_NOTHROW(model.plan({.tp = static_cast<std::uint32_t>(std::stoul(degree))}));
  }
}

TEST_CASE("A partition through a packed byte is refused with the degrees that work") {
  const std::string down = "model.layers.1.mlp.down_proj.weight", embedding = "model.embed_tokens.weight";
  const auto packed = [](const std::string& name) {
    return [name](TensorMap& tensors) {
      Random random(4);
      tensors.at(name) = random_tensor(random, DType::kF4, tensors.at(name).shape);
    };
  };
  // Half a row of 6 elements of 4 bits ends inside a byte.
  const MemoryModel half({.hidden = 4, .intermediate = 6}, packed(down));
  half.check_unplanned({.tp = 2}, {.kind = ErrorKind::kUsage,
                                   .tensor = down,
                                   .says = "2 ranks would share a packed byte: elements of F4 have 4 bits",
                                   .hint = "TP degrees that work for this model: 1"});
  CHECK_NOTHROW(half.plan({.tp = 1}));
  // Four ranks have 3 of 12 elements, two have 6. The list is the same, whatever was wrong.
  const MemoryModel four({.hidden = 4, .intermediate = 12, .kv_heads = 4, .vocab = 4}, packed(down));
  for (const std::uint32_t tp : {4u, 3u})
    CHECK(four.check_unplanned({.tp = tp}, {.kind = ErrorKind::kUsage})
              .hint()
              .ends_with("TP degrees that work for this model: 1, 2"));
  CHECK_NOTHROW(four.plan({.tp = 2}));
  // 6 × 3 elements of 4 bits are 9 bytes, half of them are not whole.
  MemoryModel({.hidden = 3, .vocab = 6}, packed(embedding))
      .check_unplanned({.tp = 2}, {.kind = ErrorKind::kUsage,
                                   .tensor = embedding,
                                   .says = "packed byte",
                                   .hint = "TP degrees that work for this model: 1"});
}

TEST_CASE("An unknown model_type is unsupported, and families whose tensors fit are named") {
  MemoryModel({.model_type = "unheard_of"})
      .check_unplanned({.tp = 1}, {.kind = ErrorKind::kUnsupported,
                                   .path = "model/config.json",
                                   .says = "\"unheard_of\"",
                                   .hint = {"its tensors fit several families", ": llama, "}});
  const MemoryModel model;
  for (const char* wrong : {"gpt2", "mixtral"}) {
    nlohmann::json config = TinyModel().config();
    config["model_type"] = wrong;
    model.files.write("model/config.json", config.dump());
    model.check_unplanned({.tp = 1}, {.hint = "choose one with `family`: llama, "});
  }
}

TEST_CASE("Linears of two dtypes that a layout would fuse are unsupported, with their directory and a way out") {
  const auto widen_gate = [](TensorMap& tensors) {
    TensorData& gate = tensors.at("model.layers.0.mlp.gate_proj.weight");
    gate = {DType::kF32, gate.shape, gate.bytes + gate.bytes};
  };
  MemoryModel({}, widen_gate)
      .check_unplanned({.tp = 2},
                       {.kind = ErrorKind::kUnsupported,
                        .path = "model",
                        .tensor = "model.layers.0.mlp.up_proj.weight",
                        .says = {"is BF16", "gate_proj.weight is F32: tensors of two dtypes cannot be fused"},
                        .hint = {"`dtype`", "a layout that does not fuse"}});
}

TEST_CASE("A model directory that is none is refused") {
  MemoryFiles files;
  files.write("m/file", "");
  files.make_directory("m/empty");
  for (const auto& [name, says] : {std::pair("m/nowhere", ""), {"m/file", ""}, {"m/empty", "config.json"}})
    check_refused([&, path = name] { plan_shard(files, shard_request(path, "m/out")); }, {.path = name, .says = says});
}

TEST_CASE("The model's own directory is no output directory, by whatever name") {
  const Input input;
  fs::create_directory_symlink(input / "model", input / "link");
  const auto before = snapshot(input.temp.path());
  const MemoryModel in_memory;
  for (const char* name : {"model", "model/.", "model/../model/", "link"}) {
    INFO(name);
    check_refused([&] { shard(input / "model", input / name, {.tp = 1, .force = true}); }, {.kind = ErrorKind::kUsage});
    if (std::string(name) == "link") continue;
    Request request = in_memory.request({.tp = 1, .force = true});
    request.output_directory = name;
    check_refused([&] { plan_shard(in_memory.files, request); }, {.kind = ErrorKind::kUsage});
  }
  CHECK((snapshot(input.temp.path()) == before));
}

TEST_CASE("A config.json that links to itself is an Error that names it") {
  const Input input;
  fs::remove(input / "model/config.json");
  fs::create_symlink("config.json", input / "model/config.json");
  check_refused([&] { plan_shard(shard_request(input / "model", input / "out", 1)); }, {.says = "config.json"});
}

TEST_CASE("Options without effect are noted, and the last note names the programs that load the files") {
  const MemoryModel model;
  const auto job = model.plan({.tp = 2, .options = {"fuse-qkv", "kv-size-multiplier=2"}});
  REQUIRE(job->notes.size() == 3);
  CHECK_THAT(job->notes[0], Says("`fuse-qkv` has no effect"));
  CHECK_THAT(job->notes[1], Says("`kv-size-multiplier` has no effect"));
  for (const auto& [name, says] :
       {std::pair{"ranks", "only reshard reads rank files in safetensors"},
        std::pair{"optimum", "of optimum-neuron 0.2.0 and later reads"}, std::pair{"nxd", "NxD 0.6.0 and later loads"},
        std::pair{"presharded", "NxD 0.9.0 and later loads"}, std::pair{"nxdi", "NxD Inference loads"},
        std::pair{"vllm", "the files are for vLLM"}})
    CHECK_THAT(model.plan({.layout = name, .tp = 2})->notes.back(), Says(says));
}

}  // namespace
}  // namespace reshard::test
