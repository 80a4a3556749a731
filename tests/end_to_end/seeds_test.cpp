// Examples of the documents that describe the systems whose checkpoints this program converts, each under the document's
// name and line. Expected bytes come from a plain split in this file.

#include <nlohmann/json.hpp>

#include "reshard/formats/torch_file.h"
#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/errors.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/random.h"
#include "support/temp_dir.h"
#include "support/torch_files.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// Chunks of dim `dim`: rank r of `tp` has r, r + tp, r + 2 tp, … of tp × stride.
TensorData split(const TensorData& whole, std::size_t dim, std::uint64_t tp, std::uint64_t rank,
                 std::uint64_t stride = 1) {
  std::uint64_t outer = 1, inner = bits(whole.dtype) / 8;
  for (std::size_t d = 0; d < dim; ++d) outer *= whole.shape[d];
  for (std::size_t d = dim + 1; d < whole.shape.size(); ++d) inner *= whole.shape[d];
  TensorData part{whole.dtype, whole.shape, {}};
  part.shape[dim] /= tp;
  const std::uint64_t row = whole.shape[dim] * inner, chunk = row / (tp * stride);
  for (std::uint64_t o = 0; o < outer; ++o)
    for (std::uint64_t s = 0; s < stride; ++s)
      part.bytes += whole.bytes.substr(o * row + (s * tp + rank) * chunk, chunk);
  return part;
}

/// A parameter of an example, and the dim that its layer splits; nothing if every rank has all of it.
struct Parameter {
  std::string name;
  DType dtype = DType::kF32;
  Dims shape;
  std::optional<std::size_t> dim = {};
};

/// The parameters of a ColumnParallelLinear.
std::vector<Parameter> column(const std::string& name, std::uint64_t inputs, std::uint64_t outputs) {
  return {{name + ".weight", DType::kF32, {outputs, inputs}, 0}, {name + ".bias", DType::kF32, {outputs}, 0}};
}

/// The parameters of a RowParallelLinear.
std::vector<Parameter> row(const std::string& name, std::uint64_t inputs, std::uint64_t outputs) {
  return {{name + ".weight", DType::kF32, {outputs, inputs}, 1}, {name + ".bias", DType::kF32, {outputs}}};
}

std::vector<Parameter> operator+(std::vector<Parameter> a, const std::vector<Parameter>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// A model of a document, with all ways in which it is described.
struct Example {
  const char* title;
  std::vector<Parameter> parameters;
  std::uint32_t tp;
  std::string modules;  // of the description
  std::string plan;     // config.json's base_model_tp_plan; empty: it has none
};

std::vector<Example> shard_checkpoint_examples() {
  const std::string linear = R"("shape": [1024, 1024], "bias": true})";
  return {{"model-builder-v2 line 646, 882 and 949: layer1 by column, layer2 by row",
           column("layer1", 1024, 1024) + row("layer2", 1024, 1024), 32,
           R"([{"name": "layer1", "plan": "colwise", )" + linear + R"(, {"name": "layer2", "plan": "rowwise", )" +
               linear + "]",
           R"({"layer1": "colwise", "layer2": "rowwise"})"},
          {"model-builder-v2 line 694: two layers by column whose outputs are gathered",
           column("layer1", 1024, 1024) + column("layer2", 1024, 1024), 32,
           R"([{"name": "layer1", "plan": "colwise_rep", )" + linear +
               R"(, {"name": "layer2", "plan": "colwise_gather_output", )" + linear + "]",
           R"({"layer1": "colwise_gather_output", "layer2": "colwise_rep"})"},
          {"model-builder-v2 line 749: inputs by name", column("layer1", 5, 10) + column("layer2", 20, 10), 2,
           R"([{"name": "layer1", "plan": "colwise", "shape": [10, 5], "bias": "always"},
           {"name": "layer2", "plan": "colwise", "shape": [10, "4 * 5"], "bias": "true"}])",
           R"({"layer1": "colwise", "layer2": "colwise"})"},
          {"model-builder-v2 line 1026: linear1 and linear2", column("linear1", 5, 10) + column("linear2", 20, 10), 2,
           R"([{"name": "linear1", "plan": "colwise", "shape": [10, 5], "bias": true},
           {"name": "linear2", "plan": "colwise", "shape": [10, 20], "bias": true}])",
           R"({"linear1": "colwise", "linear2": "colwise"})"},
          {"model-builder-v2 line 801 and 1097: the buffer cache",
           {{"cache", DType::kF32, {1}}},
           1,
           R"([{"name": "cache", "parameter": "", "plan": "replicate", "shape": [1]}])",
           ""},
          {"model-builder-v2 line 587: a persistent buffer and a parameter",
           {{"buffer_persistent", DType::kBF16, {10}}, {"parameter", DType::kBF16, {10}}},
           2,
           R"([{"name": "buffer_persistent", "parameter": "", "plan": "replicate", "shape": [10]},
           {"name": "parameter", "parameter": "", "plan": "replicate", "shape": [10]}])",
           ""}};
}

TensorMap random_weights(const std::vector<Parameter>& parameters) {
  Random random(587);
  TensorMap tensors;
  for (const Parameter& parameter : parameters)
    tensors[parameter.name] = random_tensor(random, parameter.dtype, parameter.shape);
  return tensors;
}

/// What `shard` has written to `output`, in layout presharded, against the plain split.
void check_ranks(const fs::path& output, const Example& example, const TensorMap& whole, std::uint32_t first = 0) {
  for (std::uint32_t rank = first; rank < example.tp; ++rank) {
    const TensorMap held =
        read_tensors(output / "weights" / ("tp" + std::to_string(rank) + "_sharded_checkpoint.safetensors"));
    CHECK(held.size() == whole.size() + (held.count("rank_util.rank")));
    for (const Parameter& parameter : example.parameters) {
      CAPTURE(rank, parameter.name);
      const TensorData& tensor = whole.at(parameter.name);
      CHECK((held.at(parameter.name) == (parameter.dim ? split(tensor, *parameter.dim, example.tp, rank) : tensor)));
    }
  }
}

ShardRequest presharded(const fs::path& model, const fs::path& output, std::uint32_t tp) {
  ShardRequest request = shard_request(model, output, tp);
  request.target.layout = layout("presharded");
  return request;
}

fs::path write_description(const fs::path& path, const std::string& modules) {
  write_file(path, R"({"model_type": "model", "modules": )" + modules + "}");
  return path;
}

TEST_CASE("The examples of shard_checkpoint run from a description without a config.json") {
  for (const Example& example : shard_checkpoint_examples()) DYNAMIC_SECTION(example.title) {
      const TempDir temp;
      const TensorMap whole = random_weights(example.parameters);
      const auto spec = read_family(write_description(temp / "spec.json", example.modules));
      fs::create_directories(temp / "model");
      fs::create_directories(temp / "saved");
      write_safetensors(temp / "model/model.safetensors", whole);
      write_safetensors(temp / "sd.safetensors", whole);
      write_torch(temp / "sd.pt", whole);
      write_torch(temp / "saved/sd.pt", whole);
      for (const char* source : {"model", "sd.safetensors", "sd.pt", "saved"}) {
        CAPTURE(source);
        const fs::path output = temp / (std::string(source) + "-ranks");
        ShardRequest request = presharded(temp / source, output, example.tp);
        request.source.family = spec;
        shard(request);
        check_ranks(output, example, whole);
        ConsolidateRequest back;
        back.source.path = output;
        back.source.family = spec;
        const fs::path whole_again = temp / (std::string(source) + "-back");
        back.output_directory = whole_again;
        consolidate(back);
        CHECK((read_tensors(whole_again / "model.safetensors") == whole));
      }
    }
}

TEST_CASE("The examples of shard_checkpoint run from the plan in config.json") {
  for (const Example& example : shard_checkpoint_examples()) {
    if (example.plan.empty()) continue;
    for (const std::string prefix : {"", "model."})
      DYNAMIC_SECTION(example.title << ", names begin with \"" << prefix << "\"") {
        const TempDir temp;
        Example named = example;
        for (Parameter& parameter : named.parameters) parameter.name = prefix + parameter.name;
        const TensorMap whole = random_weights(named.parameters);
        fs::create_directories(temp / "model");
        write_safetensors(temp / "model/model.safetensors", whole);
        write_file(temp / "model/config.json",
                   R"({"model_type": "model", "base_model_tp_plan": )" + example.plan + "}");
        shard(presharded(temp / "model", temp / "out", named.tp));
        check_ranks(temp / "out", named, whole);
        for (const char* name : {"ranks", "optimum"}) {
          CAPTURE(name);
          ShardRequest request = shard_request(temp / "model", temp / name, named.tp);
          request.target.layout = layout(name);
          shard(request);
          CHECK((consolidated(temp / name, temp / (std::string(name) + "-back")) == whole));
        }
      }
  }
}

TEST_CASE("model-builder-v2 lines 136 and 138: start_rank and end_rank of a model without layers") {
  const TempDir temp;
  const Example example = shard_checkpoint_examples()[3];
  const TensorMap whole = random_weights(example.parameters);
  write_safetensors(temp / "sd.safetensors", whole);
  ShardRequest request = presharded(temp / "sd.safetensors", temp / "out", example.tp);
  request.source.family = read_family(write_description(temp / "spec.json", example.modules));
  request.target.options.set_number("start-rank", 1);
  shard(request);
  check_ranks(temp / "out", example, whole, 1);
  CHECK_FALSE(fs::exists(temp / "out/weights/tp0_sharded_checkpoint.safetensors"));
}

TEST_CASE("model-builder-v2 line 132: all parameters of the description have to be there, and no others") {
  const TempDir temp;
  const Example example = shard_checkpoint_examples()[3];
  TensorMap whole = random_weights(example.parameters);
  ShardRequest request = presharded(temp / "sd.safetensors", temp / "out", example.tp);
  request.source.family = read_family(write_description(temp / "spec.json", example.modules));
  const auto error = [&] {
    write_safetensors(temp / "sd.safetensors", whole);
    return error_of([&] { shard(request); });
  };
  whole.erase("linear2.weight");
  CHECK(error().kind() == ErrorKind::kBadInput);
  CHECK_THAT(error().what(), Says("sd.safetensors") && Says("missing linear2.weight"));
  whole = random_weights(example.parameters);
  whole["linear3.weight"] = whole.at("linear2.weight");
  CHECK(error().kind() == ErrorKind::kBadInput);
  CHECK_THAT(error().what(), Says("linear3.weight"));
}

TEST_CASE("A model without a stack of layers has one pipeline stage") {
  const TempDir temp;
  const Example example = shard_checkpoint_examples()[3];
  const TensorMap whole = random_weights(example.parameters);
  fs::create_directories(temp / "model");
  write_safetensors(temp / "model/model.safetensors", whole);
  ShardRequest request = shard_request(temp / "model", temp / "out", example.tp, 2);
  SECTION("by a description") {
    request.source.family = read_family(write_description(temp / "spec.json", example.modules));
  }
  SECTION("by a plan") {
    write_file(temp / "model/config.json", R"({"base_model_tp_plan": )" + example.plan + "}");
  }
  const Error stages = error_of([&] { shard(request); });
  CHECK(stages.kind() == ErrorKind::kUsage);
  CHECK_THAT(stages.what(), Says("no stack of layers to spread over 2 pipeline stages"));
  request.target.pp.reset();
  request.target.pipeline_cuts = {"linear1"};
  const Error cuts = error_of([&] { shard(request); });
  CHECK(cuts.kind() == ErrorKind::kUsage);
  CHECK_THAT(cuts.what(), Says("no stack of layers to cut"));
}

TEST_CASE("A plan that names nothing of a model without layers is an error") {
  const TempDir temp;
  fs::create_directories(temp / "model");
  write_safetensors(temp / "model/model.safetensors", random_weights(column("layer1", 4, 4)));
  write_file(temp / "model/config.json", R"({"model_type": "model", "base_model_tp_plan": {"linear": "colwise"}})");
  const Error error = error_of([&] { shard(shard_request(temp / "model", temp / "out", 2)); });
  CHECK(error.kind() == ErrorKind::kBadInput);
  CHECK_THAT(error.what(), Says("config.json") && Says("base_model_tp_plan names no tensor"));
}

TEST_CASE("Without config.json, keys that a description names are reported with their field") {
  const TempDir temp;
  write_safetensors(temp / "sd.safetensors", random_weights(column("layer1", 4, 4)));
  struct Mistake {
    std::string modules;
    std::string says;
  };
  const Mistake mistakes[] = {
      {R"([{"name": "layer1", "plan": "colwise", "shape": ["width", 4]}])", "layer1: \"shape\": \"width\" is missing"},
      {R"([{"name": "layer1", "plan": "colwise", "shape": [0, 4]}])", "layer1: \"shape\": 0 is no size"},
      {R"([{"name": "layer1", "plan": "colwise", "shape": [4.5, 4]}])", "layer1: \"shape\" has 4.5, expected a whole"},
      {R"([{"name": "layer1", "plan": "colwise", "shape": [-4, 4]}])", "layer1: \"shape\" has -4, expected a whole"},
      {R"([{"name": "layer.*", "plan": "colwise", "shape": [4, 4]}])", "layer.* has a star for a layer's number"},
      {R"([{"name": "layer1", "plan": "colwise", "shape": [4, 4]}], "num_layers": 2)", "\"num_layers\" is 2, expected"},
      {R"([{"name": "layer1", "plan": "colwise", "shape": [4, 4]}], "layers": "l", "num_layers": "n", "defaults": {"n": 0})",
       "\"num_layers\": \"n\" is 0, expected a positive whole number"},
      {R"([{"name": "layer1", "plan": "colwise", "shape": [4, 4]},
           {"name": "head", "plan": "colwise", "shape": [4, 4], "tied_to": "layer1"}])",
       "head: \"tied_to\": \"tie_word_embeddings\" is missing"}};
  for (const Mistake& mistake : mistakes) {
    CAPTURE(mistake.modules);
    const Error error = error_of([&] {
      ShardRequest request = presharded(temp / "sd.safetensors", temp / "out", 2);
      request.source.family = read_family(write_description(temp / "spec.json", mistake.modules));
      shard(request);
    });
    CHECK(error.kind() == ErrorKind::kBadInput);
    CHECK_THAT(error.what(), Says("spec.json") && Says(mistake.says));
    CHECK_THAT(error.hint(), !Says("did you mean \"n\""));
  }
}

TEST_CASE("A lone state dict needs a config.json or a description, and a part of a model is none") {
  const TempDir temp;
  const TensorMap whole = random_weights(column("layer1", 4, 4));
  write_safetensors(temp / "sd.safetensors", whole);
  CHECK_THAT(error_of([&] { shard(presharded(temp / "sd.safetensors", temp / "out", 2)); }).what(),
             Says("no config.json"));
  write_file(temp / "config.json", R"({"model_type": "mine"})");
  const Error unknown = error_of([&] { shard(presharded(temp / "sd.safetensors", temp / "out", 2)); });
  CHECK(unknown.kind() == ErrorKind::kUnsupported);
  CHECK_THAT(unknown.what(), Says("\"mine\" is not known"));
  write_safetensors(temp / "model-00001-of-00002.safetensors", whole);
  const Error part = error_of([&] { shard(presharded(temp / "model-00001-of-00002.safetensors", temp / "out", 2)); });
  CHECK(part.kind() == ErrorKind::kBadInput);
  CHECK_THAT(part.what(), Says("one of several weight files"));
}

}  // namespace
}  // namespace reshard::test
