#include <nlohmann/json.hpp>

#include "reshard/base/strings.h"
#include "reshard/io/memory_files.h"
#include "reshard/plan/job/job.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// A model in memory, and the error that planning to shard it gives.
class Model {
 public:
  explicit Model(const TinyModel& model = {}, DType dtype = DType::kBF16) {
    Random random(4);
    write_model(files, "model", model, random_tensors(model, random, dtype));
  }
  ShardRequest request(std::uint32_t tp, std::uint32_t pp = 1) const { return shard_request("model", "out", tp, pp); }
  Error error(const ShardRequest& request) const {
    return error_of([&] { plan_shard(files, request); });
  }

  mutable MemoryFiles files;
};

void write_local_model(const fs::path& directory) {
  const TinyModel model;
  Random random(4);
  write_model(directory, model, random_tensors(model, random));
}

TEST_CASE("A size that does not divide is named with its dim and numbers, and the degrees that work") {
  TinyModel tiny;
  tiny.heads = 6;
  tiny.kv_heads = 6;
  tiny.intermediate = 18;
  tiny.vocab = 36;
  const Model model(tiny);
  const Error error = model.error(model.request(4));
  CHECK(error.kind() == ErrorKind::kUsage);
  CHECK_THAT(error.hint(), Says("TP degrees that work for this model: 1, 2, 3, 6"));
  tiny.vocab = 35;
  const Model odd(tiny);
  const Error vocab = odd.error(odd.request(2));
  CHECK(vocab.kind() == ErrorKind::kUsage);
  CHECK(vocab.tensor() == "model.embed_tokens.weight");
  CHECK_THAT(vocab.what(), Says("dim 0 has 35 elements, which 2 ranks do not divide"));
  CHECK(vocab.hint() == "TP degrees that work for this model: 1");
}

TEST_CASE("Every degree that an error says works does work") {
  TinyModel tiny;
  tiny.heads = 12;
  tiny.kv_heads = 2;
  tiny.intermediate = 24;
  tiny.vocab = 48;
  const Model model(tiny);
  const std::string hint = model.error(model.request(5)).hint();
  const std::string lead = "TP degrees that work for this model: ";
  REQUIRE_THAT(hint, Says(lead));
  std::size_t tried = 0;
  for (const std::string& degree : split(hint.substr(hint.find(lead) + lead.size()), ',')) {
    INFO(hint << " → " << degree);
    CHECK_NOTHROW(plan_shard(model.files, model.request(static_cast<std::uint32_t>(std::stoul(degree)))));
    ++tried;
  }
  CHECK(tried >= 3);
}

TEST_CASE("A multiplier that cannot be is refused with those that can") {
  TinyModel tiny;
  tiny.heads = 16;
  tiny.kv_heads = 2;
  const Model model(tiny);
  for (const std::uint64_t multiplier : {1, 3, 8, 16}) {
    INFO(multiplier);
    ShardRequest request = model.request(8);
    request.target.options.set_number("kv-size-multiplier", multiplier);
    if (multiplier == 8) {
      CHECK_NOTHROW(plan_shard(model.files, request));
      continue;
    }
    check_error(model.error(request),
                {.kind = ErrorKind::kUsage,
                 .says = {"(16 query, 2 key/value)", "multiplier of " + std::to_string(multiplier)},
                 .hint = "multipliers that work for `tp` 8: 4, 8"});
  }
}

TEST_CASE("More stages than layers are refused with both numbers") {
  const Model model;
  ShardRequest request = model.request(1, 2);
  request.target.vpp = 2;
  check_error(model.error(request), {.kind = ErrorKind::kUsage, .says = {"2 layers", "4 pipeline stages"}});
}

TEST_CASE("Cuts that make no partition are refused") {
  TinyModel tiny;
  tiny.layers = 5;
  const Model model(tiny);
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"model.layers.1"}, "2 stages"},
      {{"model.layers.3", "model.layers.1"}, "does not come after"},
      {{"model.layers.1", "model.layers.1"}, "does not come after"},
      {{"model.layers.1", "model.layers.4"}, "leaves no layer"},
      {{"model.layers.1", "model.layers.x"}, "is not a layer"},
      {{"model.layers.1", "layers.2"}, "is not a layer"},
      {{"model.layers.1", "model.layers.18446744073709551615"}, "leaves no layer"},
  };
  for (const auto& [cuts, says] : cases) {
    DYNAMIC_SECTION(join(cuts, " ")) {
      ShardRequest request = model.request(1, 3);
      request.target.pipeline_cuts = cuts;
      check_error(model.error(request), {.kind = ErrorKind::kUsage, .says = says});
    }
  }
  ShardRequest request = model.request(1);
  request.target.pp.reset();
  request.target.vpp = 2;
  request.target.pipeline_cuts = {"model.layers.1", "model.layers.2"};
  CHECK_THAT(model.error(request).what(), Says("`vpp` 2 does not divide"));
}

TEST_CASE("A partition through a packed byte is refused with the degrees that work") {
  TinyModel tiny;
  tiny.hidden = 4;
  tiny.intermediate = 6;  // half a row of 6 elements of 4 bits ends inside a byte
  Random random(4);
  TensorMap tensors = random_tensors(tiny, random);
  tensors["model.layers.1.mlp.down_proj.weight"] = random_tensor(random, DType::kF4, {4, 6});
  MemoryFiles files;
  const fs::path temp = "m";
  write_model(files, temp / "model", tiny, tensors);
  check_refused([&] { plan_shard(files, shard_request(temp / "model", temp / "out", 2)); },
                {.kind = ErrorKind::kUsage,
                 .tensor = "model.layers.1.mlp.down_proj.weight",
                 .says = "2 ranks would share a packed byte: elements of F4 have 4 bits",
                 .hint = "TP degrees that work for this model: 1"});
  tiny.intermediate = 12;  // four ranks have 3 of 12 elements, two have 6
  tiny.vocab = 4;
  tiny.kv_heads = 4;
  tensors = random_tensors(tiny, random);
  tensors["model.layers.1.mlp.down_proj.weight"] = random_tensor(random, DType::kF4, {4, 12});
  write_model(files, temp / "four", tiny, tensors);
  const Error four = error_of([&] { plan_shard(files, shard_request(temp / "four", temp / "out", 4)); });
  CHECK(four.hint().ends_with("TP degrees that work for this model: 1, 2"));
  const Error three = error_of([&] { plan_shard(files, shard_request(temp / "four", temp / "out", 3)); });
  CHECK(three.hint().ends_with("TP degrees that work for this model: 1, 2"));  // the same list, whatever was wrong
  CHECK_NOTHROW(plan_shard(files, shard_request(temp / "four", temp / "out", 2)));
  CHECK_NOTHROW(plan_shard(files, shard_request(temp / "model", temp / "out", 1)));
}

TEST_CASE("A rank's tensor that does not fill whole bytes is refused as a partition through a packed byte") {
  TinyModel tiny;
  tiny.hidden = 3;
  tiny.vocab = 6;  // 6 × 3 elements of 4 bits are 9 bytes, half of them are not whole
  Random random(4);
  TensorMap tensors = random_tensors(tiny, random);
  tensors["model.embed_tokens.weight"] = random_tensor(random, DType::kF4, {6, 3});
  MemoryFiles files;
  const fs::path temp = "m";
  write_model(files, temp / "model", tiny, tensors);
  check_refused([&] { plan_shard(files, shard_request(temp / "model", temp / "out", 2)); },
                {.kind = ErrorKind::kUsage,
                 .tensor = "model.embed_tokens.weight",
                 .says = "packed byte",
                 .hint = "TP degrees that work for this model: 1"});
}

TEST_CASE("An unknown model_type is unsupported, and a family whose tensors fit is named") {
  TinyModel tiny;
  tiny.model_type = "unheard_of";
  const Model model(tiny);
  const Error error = model.error(model.request(1));
  CHECK(error.kind() == ErrorKind::kUnsupported);
  CHECK(error.path() == "model/config.json");
  CHECK_THAT(error.what(), Says("\"unheard_of\""));
  CHECK_THAT(error.hint(), Says("its tensors fit several families"));
  CHECK_THAT(error.hint(), Says(": llama, "));  // the others are like it
}

TEST_CASE("Linears of two dtypes that a layout would fuse are unsupported, with their directory and a way out") {
  const TinyModel tiny;
  Random random(4);
  TensorMap tensors = random_tensors(tiny, random);
  TensorData& gate = tensors.at("model.layers.0.mlp.gate_proj.weight");
  gate = random_tensor(random, DType::kF32, gate.shape);
  MemoryFiles files;
  write_model(files, "model", tiny, tensors);
  check_refused([&] { plan_shard(files, shard_request("model", "out", 2)); },
                {.kind = ErrorKind::kUnsupported,
                 .path = "model",
                 .says = "tensors of two dtypes cannot be fused",
                 .hint = {"`dtype`", "a layout that fuses nothing"}});
}

TEST_CASE("Where the tensors are not those of the model_type, the families that they fit are proposed") {
  const Model model;
  nlohmann::json config = TinyModel().config();
  for (const char* wrong : {"gpt2", "mixtral"}) {
    config["model_type"] = wrong;
    model.files.write("model/config.json", config.dump());
    check_error(model.error(model.request(1)), {.hint = "choose one with `family`: llama, "});
  }
}

TEST_CASE("A model directory that is none is refused") {
  MemoryFiles files;
  const fs::path temp = "m";
  files.write(temp / "file", "");
  for (const char* name : {"nowhere", "file"})
    check_refused([&] { plan_shard(files, shard_request(temp / name, temp / "out")); }, {.path = temp / name});
  files.make_directory(temp / "empty");
  CHECK_THAT(error_of([&] { plan_shard(files, shard_request(temp / "empty", temp / "out")); }).what(),
             Says("config.json"));
}

TEST_CASE("The model's own directory is no output directory, by whatever name") {
  const TempDir temp;
  write_local_model(temp / "model");
  fs::create_directory_symlink(temp / "model", temp / "link");
  const auto before = snapshot(temp.path());
  const std::string name = GENERATE("model", "model/.", "model/../model/", "link");
  INFO(name);
  ShardRequest request = shard_request(temp / "model", temp / name, 1);
  request.force = true;
  CHECK(error_of([&] { plan_shard(request); }).kind() == ErrorKind::kUsage);
  CHECK((snapshot(temp.path()) == before));
}

TEST_CASE("The model's own directory in memory is no output directory, by whatever name") {
  const Model model;
  const std::string name = GENERATE("model", "model/.", "model/../model/");
  INFO(name);
  ShardRequest request = model.request(1);
  request.output_directory = name;
  request.force = true;
  CHECK(model.error(request).kind() == ErrorKind::kUsage);
}

TEST_CASE("A config.json that links to itself is an Error that names it") {
  const TempDir temp;
  write_local_model(temp / "model");
  fs::remove(temp / "model/config.json");
  fs::create_symlink("config.json", temp / "model/config.json");
  check_refused([&] { plan_shard(shard_request(temp / "model", temp / "out", 1)); }, {.says = "config.json"});
}

TEST_CASE("Options without effect are noted") {
  const Model model;
  ShardRequest request = model.request(2);
  request.target.options.set_flag("fuse-qkv", true);
  request.target.options.set_number("kv-size-multiplier", 2);
  const auto job = plan_shard(model.files, request);
  REQUIRE(job->notes.size() == 3);
  CHECK_THAT(job->notes[0], Says("`fuse-qkv` has no effect"));
  CHECK_THAT(job->notes[1], Says("`kv-size-multiplier` has no effect"));
  CHECK_THAT(job->notes[2], Says("only reshard reads rank files in safetensors"));
}

TEST_CASE("The last note names the programs that load the files") {
  const Model model;
  for (const auto& [name, says] :
       {std::pair{"ranks", "only reshard reads rank files in safetensors"},
        std::pair{"optimum", "optimum-neuron 0.2.0 and later reads"}, std::pair{"nxd", "NxD 0.6.0 and later loads"},
        std::pair{"presharded", "NxD 0.9.0 and later loads"}, std::pair{"nxdi", "NxD Inference loads"},
        std::pair{"vllm", "the files are for vLLM"}}) {
    INFO(name);
    ShardRequest request = model.request(2);
    request.target.layout = layout_named(name);
    REQUIRE(request.target.layout != nullptr);
    const auto job = plan_shard(model.files, request);
    REQUIRE_FALSE(job->notes.empty());
    CHECK_THAT(job->notes.back(), Says(says));
  }
}

// Degrees of zero, and those that no machine has. They come last: a division by zero would end the program.

TEST_CASE("More ranks than can be read back are refused before anything is planned") {
  TinyModel tiny;
  tiny.hidden = 1;
  tiny.heads = tiny.kv_heads = tiny.vocab = tiny.intermediate = 5000;
  tiny.head_dim = 2;
  tiny.layers = 1;
  const Model model(tiny);
  CHECK(model.error(model.request(5000)).kind() == ErrorKind::kUsage);
}

TEST_CASE("Stages whose number overflows are refused") {
  const Model model;
  ShardRequest request = model.request(1, 65536);
  request.target.vpp = 65536;
  CHECK(model.error(request).kind() == ErrorKind::kUsage);
}

TEST_CASE("A degree of zero is refused: tp") {
  const Model model;
  CHECK(model.error(model.request(0)).kind() == ErrorKind::kUsage);
}

TEST_CASE("A degree of zero is refused: pp") {
  const Model model;
  CHECK(model.error(model.request(1, 0)).kind() == ErrorKind::kUsage);
}

TEST_CASE("A degree of zero is refused: vpp") {
  const Model model;
  ShardRequest request = model.request(1);
  request.target.vpp = 0;
  CHECK(model.error(request).kind() == ErrorKind::kUsage);
}

}  // namespace
}  // namespace reshard::test
