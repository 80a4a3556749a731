// Examples of the documents that describe the systems whose checkpoints this program converts, each under the document's
// name and line. Expected bytes come from a plain split in this file.

#include <nlohmann/json.hpp>

#include "reshard/formats/torch/torch_file.h"
#include "reshard/plan/source/metadata_model.h"
#include "support/checkpoints.h"
#include "support/containers.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/random.h"
#include "support/refusals.h"
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
  check_refused([&] { shard(request); },
                {.kind = ErrorKind::kUsage, .says = "no stack of layers to spread over 2 pipeline stages"});
  request.target.pp.reset();
  request.target.pipeline_cuts = {"linear1"};
  check_refused([&] { shard(request); }, {.kind = ErrorKind::kUsage, .says = "no stack of layers to cut"});
}

TEST_CASE("A plan that names nothing of a model without layers is an error") {
  const TempDir temp;
  fs::create_directories(temp / "model");
  write_safetensors(temp / "model/model.safetensors", random_weights(column("layer1", 4, 4)));
  write_file(temp / "model/config.json", R"({"model_type": "model", "base_model_tp_plan": {"linear": "colwise"}})");
  check_refused([&] { shard(shard_request(temp / "model", temp / "out", 2)); },
                {.says = {"config.json", "base_model_tp_plan names no tensor"}});
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
    const Error error = check_refused(
        [&] {
          ShardRequest request = presharded(temp / "sd.safetensors", temp / "out", 2);
          request.source.family = read_family(write_description(temp / "spec.json", mistake.modules));
          shard(request);
        },
        {.says = {"spec.json", mistake.says}});
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
  check_refused([&] { shard(presharded(temp / "sd.safetensors", temp / "out", 2)); },
                {.kind = ErrorKind::kUnsupported, .says = "\"mine\" is not known"});
  write_safetensors(temp / "model-00001-of-00002.safetensors", whole);
  check_refused([&] { shard(presharded(temp / "model-00001-of-00002.safetensors", temp / "out", 2)); },
                {.says = "one of several weight files"});
}

/// A directory of one file, model.safetensors, and no config.json.
void write_whole(const fs::path& directory, const TensorMap& tensors) {
  fs::create_directories(directory);
  write_safetensors(directory / "model.safetensors", tensors);
}

/// `a` and `b` side by side.
TensorData side_by_side(const TensorData& a, const TensorData& b) {
  TensorData joined{a.dtype, {a.shape[0], a.shape[1] + b.shape[1]}, {}};
  const std::uint64_t left = a.shape[1] * bits(a.dtype) / 8, right = b.shape[1] * bits(b.dtype) / 8;
  for (std::uint64_t i = 0; i < a.shape[0]; ++i)
    joined.bytes += a.bytes.substr(i * left, left) + b.bytes.substr(i * right, right);
  return joined;
}

nlohmann::json first_metadata(const fs::path& output) {
  for (const char* folder : {"shards", "tensor_parallel_shards"})
    if (fs::exists(output / folder / metadata_file_name(0)))
      return nlohmann::json::parse(read_file(output / folder / metadata_file_name(0)));
  FAIL("no metadata in " << output);
  return {};
}

TEST_CASE("contributing-custom-models line 113: a stride in a description") {
  const TempDir temp;
  const std::vector<Parameter> parameters = {{"mlp.gate_up_proj.weight", DType::kBF16, {24, 6}},
                                             {"mlp.gate_up_proj.bias", DType::kBF16, {24}},
                                             {"mlp.down_proj.weight", DType::kBF16, {6, 24}},
                                             {"embed.weight", DType::kBF16, {12, 6}}};
  const TensorMap whole = random_weights(parameters);
  write_whole(temp / "model", whole);
  const auto spec = read_family(write_description(
      temp / "spec.json",
      R"([{"name": "mlp.gate_up_proj", "plan": "colwise", "shape": [24, 6], "stride": 2, "bias": true},
                              {"name": "mlp.down_proj", "plan": "rowwise", "shape": [6, 24], "stride": "12 / 4"},
                              {"name": "embed", "plan": "embedding_rowwise", "shape": [12, 6], "stride": 1}])"));
  for (const std::uint32_t tp : {2u, 4u})
    for (const char* name : {"optimum", "ranks", "presharded", "nxd"}) {
      CAPTURE(tp, name);
      const fs::path output = temp / (name + std::to_string(tp));
      ShardRequest request = shard_request(temp / "model", output, tp);
      request.target.layout = layout(name);
      request.target.format =
          std::string(name) == "optimum" || std::string(name) == "nxd" ? Format::kPytorch : Format::kSafetensors;
      request.source.family = spec;
      shard(request);
      ConsolidateRequest back;
      back.source.path = output;
      const fs::path whole_again = temp / "back" / output.filename();
      back.output_directory = whole_again;
      if (std::string(name) == "presharded" || std::string(name) == "nxd") back.source.family = spec;
      consolidate(back);
      CHECK((read_tensors(whole_again / "model.safetensors") == whole));
      if (std::string(name) != "ranks") continue;
      for (const auto& [folder, held] : read_ranks(output)) {
        const std::uint64_t rank = std::stoul(folder.substr(8, 2));
        CHECK((held.at("mlp.gate_up_proj.weight") == split(whole.at("mlp.gate_up_proj.weight"), 0, tp, rank, 2)));
        CHECK((held.at("mlp.gate_up_proj.bias") == split(whole.at("mlp.gate_up_proj.bias"), 0, tp, rank, 2)));
        CHECK((held.at("mlp.down_proj.weight") == split(whole.at("mlp.down_proj.weight"), 1, tp, rank, 3)));
        CHECK((held.at("embed.weight") == split(whole.at("embed.weight"), 0, tp, rank)));
      }
      const nlohmann::json entry = first_metadata(output)["parameters"]["mlp.gate_up_proj.weight"];
      CHECK(entry.dump().find("2") != std::string::npos);
    }
}

TEST_CASE(
    "contributing-custom-models lines 131 and 136: linears fused by column and by row, in and outside of layers") {
  const TempDir temp;
  const std::vector<Parameter> parameters = {
      {"mlp.gate_proj.weight", DType::kF32, {8, 6}}, {"mlp.up_proj.weight", DType::kF32, {4, 6}},
      {"h.0.a.weight", DType::kF32, {6, 8}},         {"h.0.b.weight", DType::kF32, {6, 4}},
      {"h.1.a.weight", DType::kF32, {6, 8}},         {"h.1.b.weight", DType::kF32, {6, 4}}};
  const TensorMap whole = random_weights(parameters);
  write_whole(temp / "model", whole);
  write_file(temp / "spec.json", R"({"model_type": "model", "layers": "h", "num_layers": 2, "modules": [
    {"name": "mlp.gate_proj", "plan": "colwise", "shape": [8, 6]}, {"name": "mlp.up_proj", "plan": "colwise", "shape": [4, 6]},
    {"name": "h.*.a", "plan": "rowwise", "shape": [6, 8]}, {"name": "h.*.b", "plan": "rowwise", "shape": [6, 4]}],
    "fused": [{"module": "mlp", "name": "gate_up_proj", "linears": ["gate_proj", "up_proj"]},
              {"module": "h.*", "name": "ab", "linears": ["a", "b"]}]})");
  const auto spec = read_family(temp / "spec.json");
  for (const char* name : {"ranks", "optimum", "nxd"}) {
    CAPTURE(name);
    const fs::path output = temp / name;
    ShardRequest request = shard_request(temp / "model", output, 2);
    request.target.layout = layout(name);
    request.source.family = spec;
    shard(request);
    ConsolidateRequest back;
    back.source.path = output;
    const fs::path whole_again = temp / "back" / output.filename();
    back.output_directory = whole_again;
    if (std::string(name) == "nxd") back.source.family = spec;
    consolidate(back);
    CHECK((read_tensors(whole_again / "model.safetensors") == whole));
  }
  for (const auto& [folder, held] : read_ranks(temp / "ranks")) {
    const std::uint64_t rank = std::stoul(folder.substr(8, 2));
    TensorData gate_up = split(whole.at("mlp.gate_proj.weight"), 0, 2, rank);
    gate_up.bytes += split(whole.at("mlp.up_proj.weight"), 0, 2, rank).bytes;
    gate_up.shape[0] = 6;
    CHECK((held.at("mlp.gate_up_proj.weight") == gate_up));
    CHECK((held.at("h.1.ab.weight") ==
           side_by_side(split(whole.at("h.1.a.weight"), 1, 2, rank), split(whole.at("h.1.b.weight"), 1, 2, rank))));
  }
  const std::string specs = first_metadata(temp / "ranks").dump();
  CHECK_THAT(specs, Says("\"fuse_axis\":1") && Says("\"fuse_axis\":0") && Says("\"original_dims\":[8,4]"));
}

TEST_CASE("contributing-custom-models lines 245 and 256: fuse_qkv and kv_size_multiplier in a description") {
  const TempDir temp;
  TinyModel model;
  model.heads = 8;
  model.kv_heads = 2;
  Random random(256);
  write_model(temp / "model", model, random_tensors(model, random));
  nlohmann::json family = nlohmann::json::parse(builtin_family("llama")->json_text);
  family["attention"]["fuse_qkv"] = true;
  family["attention"]["kv_size_multiplier"] = 4;
  write_file(temp / "spec.json", family.dump());
  ShardRequest request = shard_request(temp / "model", temp / "options", 4);
  request.target.options.set("fuse-qkv");
  request.target.options.set_number("kv-size-multiplier", 4);
  shard(request);
  request = shard_request(temp / "model", temp / "spec", 4);
  request.source.family = read_family(temp / "spec.json");
  shard(request);
  CHECK((snapshot(temp / "options") == snapshot(temp / "spec")));
  request.output_directory = temp / "option";
  request.target.options.set_number("kv-size-multiplier", 2);
  shard(request);
  CHECK((snapshot(temp / "option") != snapshot(temp / "spec")));
}

TEST_CASE("Mistakes in a description's strides and fused linears name their field") {
  const TempDir temp;
  write_whole(temp / "model", {{"a.weight", TensorData{DType::kU8, {4, 4}, std::string(16, 'x')}}});
  const auto refused = [&](const std::string& rest, const std::string& says) {
    CAPTURE(rest);
    check_refused(
        [&] {
          ShardRequest request = shard_request(temp / "model", temp / "out", 2);
          request.source.family = read_family(write_description(temp / "spec.json", rest));
          shard(request);
        },
        {.says = {"spec.json", says}});
  };
  const std::string a = R"([{"name": "a", "plan": "colwise", "shape": [4, 4])";
  refused(a + R"(, "stride": 3}])", "a: \"stride\": dim 0 has 4 elements, which are no 3 equal parts");
  refused(a + R"(, "stride": 0}])", "a: \"stride\": 0 is no size");
  refused(a + R"(, "strides": 2}])", "the key \"strides\" is not known");
  refused(R"([{"name": "a", "plan": "replicate", "shape": [4, 4], "stride": 2}])",
          "\"stride\" is 2, expected a plan of");
  refused(R"([{"name": "a", "plan": "packed_colwise", "shape": [4, 4], "stride": 2}])",
          "\"stride\" is 2, expected a plan of");
  const std::string row = R"({"name": "b", "plan": "rowwise", "shape": [4, 4])";
  const std::string fused = R"(], "fused": [{"module": "m", "name": "ab", "linears": ["a", "b"]}])";
  const std::string m_a = R"([{"name": "m.a", "plan": "rowwise", "shape": [4, 4]}, )";
  refused(m_a + R"({"name": "m.b", "plan": "colwise", "shape": [4, 4]})" + fused, "m.b needs the plan rowwise");
  refused(m_a + R"({"name": "m.b", "plan": "rowwise", "shape": [4, 4], "bias": true})" + fused,
          "m.b is split along its inputs, and so it cannot have a bias");
}

/// Ranks of a llama whose config.json names a model that nobody knows, or that have none.
void hide_model(const fs::path& ranks, bool keeps_config) {
  nlohmann::json config = nlohmann::json::parse(read_file(ranks / "config.json"));
  config["model_type"] = "your_model";
  fs::remove(ranks / "config.json");
  if (keeps_config) write_file(ranks / "config.json", config.dump());
}

std::string spec_of(const fs::path& ranks) {
  return description_of_metadata(read_checkpoint(ranks, ReadContext{}));
}

/// A way to make ranks.
struct Made {
  const char* layout;
  std::uint32_t tp;
  std::uint32_t pp;
  bool fuse_qkv;
};

ShardRequest made(const fs::path& model, const fs::path& output, const Made& how) {
  ShardRequest request = shard_request(model, output, how.tp, how.pp);
  request.target.layout = layout(how.layout);
  request.target.format = Format::kXser;
  if (std::string(how.layout) == "ranks") request.target.format = Format::kSafetensors;
  request.target.options.set_flag("fuse-qkv", how.fuse_qkv);
  return request;
}

TEST_CASE("contributing-custom-models line 30: the description that metadata amounts to makes the same ranks") {
  for (const bool tied : {false, true})
    for (const std::uint64_t kv_heads : {2, 8})
      for (const Made& how : {Made{"ranks", 2, 1, true}, Made{"ranks", 4, 2, false}, Made{"ranks", 8, 1, true},
                              Made{"ranks", 1, 1, false}, Made{"optimum", 4, 1, true}, Made{"optimum", 2, 3, false}})
        DYNAMIC_SECTION((tied ? "tied, " : "") << kv_heads << " key/value heads, " << how.layout << " tp " << how.tp
                                               << " pp " << how.pp << (how.fuse_qkv ? " fused" : "")) {
          const TempDir temp;
          TinyModel model;
          model.heads = 8;
          model.hidden = 32;
          model.kv_heads = kv_heads;
          model.layers = 3;
          model.tied = tied;
          model.attention_bias = model.mlp_bias = true;
          Random random(30);
          write_model(temp / "model", model, random_tensors(model, random));
          shard(made(temp / "model", temp / "ranks", how));
          const auto original = snapshot(temp / "ranks");
          hide_model(temp / "ranks", false);
          write_file(temp / "spec.json", spec_of(temp / "ranks"));
          INFO(read_file(temp / "spec.json"));
          const TensorMap whole = consolidated(temp / "ranks", temp / "whole");
          ShardRequest again = made(temp / "whole", temp / "again", how);
          again.source.family = read_family(temp / "spec.json");
          again.target.options.erase("fuse-qkv");  // of heads that are grouped, the description says it
          again.target.options.set_flag("fuse-qkv", how.fuse_qkv && kv_heads % how.tp == 0);
          shard(again);
          auto copy = snapshot(temp / "again");
          for (const auto& [path, content] : original)
            if (path.starts_with("tensor_parallel_shards") || path.starts_with("shards")) {
              CAPTURE(path);
              if (path.find("mp_metadata") == std::string::npos) CHECK((copy[path] == content));
            }
        }
}

TEST_CASE("contributing-custom-models line 31: a custom model goes to another tp by its own metadata") {
  const Made targets[] = {{"optimum", 1, 1, false}, {"optimum", 2, 1, false}, {"optimum", 8, 1, false},
                          {"ranks", 2, 1, false},   {"ranks", 8, 1, false},   {"presharded", 2, 1, false}};
  for (const char* source : {"optimum", "ranks"})
    for (const bool keeps_config : {false, true}) {
      const TempDir temp;
      TinyModel model;
      model.heads = 8;
      model.hidden = 32;
      model.kv_heads = 2;
      Random random(31);
      write_model(temp / "model", model, random_tensors(model, random));
      shard(made(temp / "model", temp / "ranks", {source, 4, 1, false}));
      hide_model(temp / "ranks", keeps_config);
      for (const Made& target : targets)
        DYNAMIC_SECTION(source << " to " << target.layout << " tp " << target.tp
                               << (keeps_config ? "" : ", no config.json")) {
          ConvertRequest request;
          request.source.path = temp / "ranks";
          request.output_directory = temp / "converted";
          request.target.layout = layout(target.layout);
          request.target.tp = target.tp;
          if (std::string(target.layout) == "optimum") request.target.format = Format::kPytorch;
          execute(*plan_convert(request), unsynced());
          ShardRequest expected = shard_request(temp / "model", temp / "expected", target.tp);
          expected.target.layout = layout(target.layout);
          expected.target.format = request.target.format;
          shard(expected);
          const auto got = snapshot(temp / "converted"), wanted = snapshot(temp / "expected");
          for (const auto& [path, content] : wanted) {
            if (path == "config.json") continue;
            CAPTURE(path);
            REQUIRE(got.count(path) == 1);
            if (path.find("mp_metadata") != std::string::npos)
              CHECK((nlohmann::json::parse(got.at(path)) == nlohmann::json::parse(content)));
            else if (path.ends_with(".pt") && std::string(source) == "ranks")  // sorted by name: the order is lost
              CHECK((read_torch_tensors(temp / "converted" / path) == read_torch_tensors(temp / "expected" / path)));
            else
              CHECK((got.at(path) == content));
          }
        }
    }
}

TEST_CASE("contributing-custom-models line 31: stages of a custom model stay where they are") {
  const TempDir temp;
  TinyModel model;
  model.layers = 4;
  Random random(32);
  write_model(temp / "model", model, random_tensors(model, random));
  ShardRequest request = shard_request(temp / "model", temp / "ranks", 2, 2);
  request.target.pipeline_cuts = {"model.layers.0"};
  shard(request);
  hide_model(temp / "ranks", false);
  const auto convert = [&](std::uint32_t tp, std::optional<std::uint32_t> pp) {
    ConvertRequest convert;
    convert.source.path = temp / "ranks";
    convert.output_directory = temp / "converted";
    convert.target.layout = layout("ranks");
    convert.target.tp = tp;
    convert.target.pp = pp;
    convert.force = true;
    return execute(*plan_convert(convert), unsynced());
  };
  convert(1, std::nullopt);
  const auto ranks = read_ranks(temp / "converted");
  REQUIRE(ranks.size() == 2);
  CHECK(ranks.at("tp_rank_00_pp_rank_00").count("model.layers.1.mlp.down_proj.weight") == 0);
  CHECK(ranks.at("tp_rank_00_pp_rank_01").count("model.layers.1.mlp.down_proj.weight") == 1);
  CHECK(ranks.at("tp_rank_00_pp_rank_01").count("lm_head.weight") == 1);
  convert(2, 1);
  fs::rename(temp / "converted", temp / "one");
  fs::remove_all(temp / "ranks");
  fs::rename(temp / "one", temp / "ranks");
  check_refused([&] { convert(2, 2); }, {.says = {"metadata of one pipeline stage", "lm_head.weight"}});
}

TEST_CASE("contributing-custom-models line 237: heads that metadata does not record are those of config.json") {
  const TempDir temp;
  TinyModel model;
  Random random(33);
  write_model(temp / "model", model, random_tensors(model, random));
  shard(shard_request(temp / "model", temp / "ranks", 2));
  hide_model(temp / "ranks", true);
  ConvertRequest request;
  request.source.path = temp / "ranks";
  request.output_directory = temp / "converted";
  request.target.layout = layout("ranks");
  request.target.tp = 4;
  check_refused([&] { plan_convert(request); },
                {.kind = ErrorKind::kUsage, .says = "has 2 groups of heads, which 4 ranks do not divide"});
}

}  // namespace
}  // namespace reshard::test
