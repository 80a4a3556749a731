// Examples of the documents that describe the systems whose checkpoints this program converts, each under the document's
// name and line. Expected bytes come from a plain split in this file.

#include <nlohmann/json.hpp>

#include "reshard/plan/source/metadata_model.h"
#include "support/checkpoints.h"
#include "support/families.h"
#include "support/input.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/spoilers.h"
#include "support/torch_files.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

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
      CHECK((held.at(parameter.name) == rank_slice(tensor, parameter.dim, example.tp, rank)));
    }
  }
}

RequestFields presharded(std::uint32_t tp, const FamilySpec& family = {}, std::vector<std::string> options = {}) {
  return {.layout = "presharded", .tp = tp, .options = std::move(options), .family = family};
}

/// The description of these modules, from `temp`/spec.json.
FamilySpec description(const TempDir& temp, const std::string& modules) {
  write_file(temp / "spec.json", R"({"model_type": "model", "modules": )" + modules + "}");
  return read_family(temp / "spec.json");
}

void write_whole(const fs::path& directory, const TensorMap& tensors) {
  write_safetensors(directory / "model.safetensors", tensors);
}

TEST_CASE("The examples of shard_checkpoint run from a description without a config.json") {
  for (const Example& example : shard_checkpoint_examples()) DYNAMIC_SECTION(example.title) {
      const TempDir temp;
      const TensorMap whole = random_weights(example.parameters);
      const FamilySpec spec = description(temp, example.modules);
      write_whole(temp / "model", whole);
      write_safetensors(temp / "sd.safetensors", whole);
      write_torch(temp / "sd.pt", whole);
      write_torch(temp / "saved/sd.pt", whole);
      for (const std::string source : {"model", "sd.safetensors", "sd.pt", "saved"}) {
        CAPTURE(source);
        const fs::path output = temp / (source + "-ranks");
        shard(temp / source, output, presharded(example.tp, spec));
        check_ranks(output, example, whole);
        CHECK((consolidated(output, temp / (source + "-back"), spec) == whole));
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
        write_whole(temp / "model", whole);
        write_file(temp / "model/config.json",
                   R"({"model_type": "model", "base_model_tp_plan": )" + example.plan + "}");
        shard(temp / "model", temp / "out", presharded(named.tp));
        check_ranks(temp / "out", named, whole);
        for (const std::string name : {"ranks", "optimum"}) {
          CAPTURE(name);
          shard(temp / "model", temp / name, {.layout = name, .tp = named.tp});
          CHECK((consolidated(temp / name, temp / (name + "-back")) == whole));
        }
      }
  }
}

TEST_CASE("model-builder-v2 lines 136 and 138: start_rank and end_rank of a model without layers") {
  const TempDir temp;
  const Example example = shard_checkpoint_examples()[3];
  const TensorMap whole = random_weights(example.parameters);
  write_safetensors(temp / "sd.safetensors", whole);
  shard(temp / "sd.safetensors", temp / "out",
        presharded(example.tp, description(temp, example.modules), {"start-rank=1"}));
  check_ranks(temp / "out", example, whole, 1);
  CHECK_FALSE(fs::exists(temp / "out/weights/tp0_sharded_checkpoint.safetensors"));
}

TEST_CASE("model-builder-v2 line 132: all parameters of the description have to be there, and no others") {
  const TempDir temp;
  const Example example = shard_checkpoint_examples()[3];
  TensorMap whole = random_weights(example.parameters);
  const RequestFields fields = presharded(example.tp, description(temp, example.modules));
  const auto refused = [&](const Texts& says) {
    write_safetensors(temp / "sd.safetensors", whole);
    check_refused([&] { shard(temp / "sd.safetensors", temp / "out", fields); }, {.says = says});
  };
  whole.erase("linear2.weight");
  refused({"sd.safetensors", "missing linear2.weight"});
  whole = random_weights(example.parameters);
  whole["linear3.weight"] = whole.at("linear2.weight");
  refused("linear3.weight");
}

TEST_CASE("A model without a stack of layers has one pipeline stage") {
  const TempDir temp;
  const Example example = shard_checkpoint_examples()[3];
  write_whole(temp / "model", random_weights(example.parameters));
  RequestFields fields{.tp = example.tp, .pp = 2};
  SECTION("by a description") {
    fields.family = description(temp, example.modules);
  }
  SECTION("by a plan") {
    write_file(temp / "model/config.json", R"({"base_model_tp_plan": )" + example.plan + "}");
  }
  const auto refused = [&](const char* says) {
    check_refused([&] { shard(temp / "model", temp / "out", fields); }, {.kind = ErrorKind::kUsage, .says = says});
  };
  refused("no stack of layers to spread over 2 pipeline stages");
  fields.pp.reset();
  fields.cuts = {"linear1"};
  refused("no stack of layers to cut");
}

TEST_CASE("A plan that names nothing of a model without layers is an error") {
  const TempDir temp;
  write_whole(temp / "model", random_weights(column("layer1", 4, 4)));
  write_file(temp / "model/config.json", R"({"model_type": "model", "base_model_tp_plan": {"linear": "colwise"}})");
  check_refused([&] { shard(shard_request(temp / "model", temp / "out", 2)); },
                {.says = {"config.json", "base_model_tp_plan names no tensor"}});
}

TEST_CASE("Without config.json, keys that a description names are reported with their field") {
  const TempDir temp;
  write_safetensors(temp / "sd.safetensors", random_weights(column("layer1", 4, 4)));
  const std::string layer1 = R"([{"name": "layer1", "plan": "colwise", "shape": )";
  const std::pair<std::string, const char*> mistakes[] = {
      {layer1 + R"(["width", 4]}])", "layer1: \"shape\": \"width\" is missing"},
      {layer1 + "[0, 4]}]", "layer1: \"shape\": 0 is not a size"},
      {layer1 + "[4.5, 4]}]", "layer1: \"shape\" has 4.5, expected a whole"},
      {layer1 + "[-4, 4]}]", "layer1: \"shape\" has -4, expected a whole"},
      {R"([{"name": "layer.*", "plan": "colwise", "shape": [4, 4]}])", "layer.* has a star for a layer's number"},
      {layer1 + R"([4, 4]}], "num_layers": 2)", "\"num_layers\" is 2, expected"},
      {layer1 + R"([4, 4]}], "layers": "l", "num_layers": "n", "defaults": {"n": 0})",
       "\"num_layers\": \"n\" is 0, expected a positive whole number"},
      {layer1 + R"([4, 4]}, {"name": "head", "plan": "colwise", "shape": [4, 4], "tied_to": "layer1"}])",
       "head: \"tied_to\": \"tie_word_embeddings\" is missing"}};
  for (const auto& mistake : mistakes) {
    CAPTURE(mistake.first);
    const Error error = check_refused(
        [&] { shard(temp / "sd.safetensors", temp / "out", presharded(2, description(temp, mistake.first))); },
        {.says = {"spec.json", mistake.second}});
    CHECK_THAT(error.hint(), !Says("did you mean \"n\""));
  }
}

TEST_CASE("A lone state dict needs a config.json or a description, and a part of a model is none") {
  const TempDir temp;
  const TensorMap whole = random_weights(column("layer1", 4, 4));
  write_safetensors(temp / "sd.safetensors", whole);
  const auto refused = [&](const char* file, const Refusal& refusal) {
    check_refused([&] { shard(temp / file, temp / "out", presharded(2)); }, refusal);
  };
  refused("sd.safetensors", {.says = "no config.json"});
  write_file(temp / "config.json", R"({"model_type": "mine"})");
  refused("sd.safetensors", {.kind = ErrorKind::kUnsupported, .says = "\"mine\" is not known"});
  write_safetensors(temp / "model-00001-of-00002.safetensors", whole);
  refused("model-00001-of-00002.safetensors", {.says = "one of several weight files"});
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
  const TensorMap whole = random_weights({{"mlp.gate_up_proj.weight", DType::kBF16, {24, 6}},
                                          {"mlp.gate_up_proj.bias", DType::kBF16, {24}},
                                          {"mlp.down_proj.weight", DType::kBF16, {6, 24}},
                                          {"embed.weight", DType::kBF16, {12, 6}}});
  write_whole(temp / "model", whole);
  const FamilySpec spec = description(
      temp, R"([{"name": "mlp.gate_up_proj", "plan": "colwise", "shape": [24, 6], "stride": 2, "bias": true},
                {"name": "mlp.down_proj", "plan": "rowwise", "shape": [6, 24], "stride": "12 / 4"},
                {"name": "embed", "plan": "embedding_rowwise", "shape": [12, 6], "stride": 1}])");
  for (const std::uint32_t tp : {2u, 4u})
    for (const std::string name : {"optimum", "ranks", "presharded", "nxd"}) {
      CAPTURE(tp, name);
      const fs::path output = temp / (name + std::to_string(tp));
      shard(temp / "model", output, {.layout = name, .tp = tp, .family = spec});
      const bool has_metadata = name == "ranks" || name == "optimum";
      CHECK((consolidated(output, temp / "back", has_metadata ? FamilySpec() : spec) == whole));
      if (name != "ranks") continue;
      for (const auto& [folder, held] : read_ranks(output)) {
        const std::uint64_t rank = std::stoul(folder.substr(8, 2));
        const auto slice = [&](const char* tensor, std::size_t dim, std::uint64_t stride) {
          return rank_slice(whole.at(tensor), dim, tp, rank, stride);
        };
        CHECK((held.at("mlp.gate_up_proj.weight") == slice("mlp.gate_up_proj.weight", 0, 2)));
        CHECK((held.at("mlp.gate_up_proj.bias") == slice("mlp.gate_up_proj.bias", 0, 2)));
        CHECK((held.at("mlp.down_proj.weight") == slice("mlp.down_proj.weight", 1, 3)));
        CHECK((held.at("embed.weight") == slice("embed.weight", 0, 1)));
      }
      const nlohmann::json entry = first_metadata(output)["parameters"]["mlp.gate_up_proj.weight"];
      CHECK(entry.dump().find('2') != std::string::npos);
    }
}

TEST_CASE(
    "contributing-custom-models lines 131 and 136: linears fused by column and by row, in and outside of layers") {
  const TempDir temp;
  const TensorMap whole = random_weights({{"mlp.gate_proj.weight", DType::kF32, {8, 6}},
                                          {"mlp.up_proj.weight", DType::kF32, {4, 6}},
                                          {"h.0.a.weight", DType::kF32, {6, 8}},
                                          {"h.0.b.weight", DType::kF32, {6, 4}},
                                          {"h.1.a.weight", DType::kF32, {6, 8}},
                                          {"h.1.b.weight", DType::kF32, {6, 4}}});
  write_whole(temp / "model", whole);
  const FamilySpec spec = description(temp, R"([
    {"name": "mlp.gate_proj", "plan": "colwise", "shape": [8, 6]}, {"name": "mlp.up_proj", "plan": "colwise", "shape": [4, 6]},
    {"name": "h.*.a", "plan": "rowwise", "shape": [6, 8]}, {"name": "h.*.b", "plan": "rowwise", "shape": [6, 4]}],
    "layers": "h", "num_layers": 2,
    "fused": [{"module": "mlp", "name": "gate_up_proj", "linears": ["gate_proj", "up_proj"]},
              {"module": "h.*", "name": "ab", "linears": ["a", "b"]}])");
  for (const std::string name : {"ranks", "optimum", "nxd"}) {
    CAPTURE(name);
    shard(temp / "model", temp / name, {.layout = name, .tp = 2, .family = spec});
    CHECK((consolidated(temp / name, temp / "back", name == "nxd" ? spec : FamilySpec()) == whole));
  }
  for (const auto& [folder, held] : read_ranks(temp / "ranks")) {
    const std::uint64_t rank = std::stoul(folder.substr(8, 2));
    const auto slice = [&](const char* tensor, std::size_t dim) { return rank_slice(whole.at(tensor), dim, 2, rank); };
    TensorData gate_up = slice("mlp.gate_proj.weight", 0);
    gate_up.bytes += slice("mlp.up_proj.weight", 0).bytes;
    gate_up.shape[0] = 6;
    CHECK((held.at("mlp.gate_up_proj.weight") == gate_up));
    CHECK((held.at("h.1.ab.weight") == side_by_side(slice("h.1.a.weight", 1), slice("h.1.b.weight", 1))));
  }
  const std::string specs = first_metadata(temp / "ranks").dump();
  CHECK_THAT(specs, Says("\"fuse_axis\":1") && Says("\"fuse_axis\":0") && Says("\"original_dims\":[8,4]"));
}

TEST_CASE("contributing-custom-models lines 245 and 256: fuse_qkv and kv_size_multiplier in a description") {
  const Input input({.heads = 8});
  nlohmann::json family = nlohmann::json::parse(builtin_family("llama")->json_text);
  family["attention"]["fuse_qkv"] = true;
  family["attention"]["kv_size_multiplier"] = 4;
  write_file(input / "spec.json", family.dump());
  const auto sharded = [&](const char* output, std::vector<std::string> options, const FamilySpec& spec) {
    shard(input / "model", input / output, {.tp = 4, .options = std::move(options), .family = spec});
    return snapshot(input / output);
  };
  const FamilySpec spec = read_family(input / "spec.json");
  const auto described = sharded("spec", {}, spec);
  CHECK((sharded("options", {"fuse-qkv", "kv-size-multiplier=4"}, {}) == described));
  CHECK((sharded("both", {"kv-size-multiplier=2"}, spec) != described));
}

TEST_CASE("Mistakes in a description's strides and fused linears name their field") {
  const TempDir temp;
  write_whole(temp / "model", {{"a.weight", TensorData{DType::kU8, {4, 4}, std::string(16, 'x')}}});
  const auto refused = [&](const std::string& rest, const std::string& says) {
    CAPTURE(rest);
    check_refused([&] { shard(temp / "model", temp / "out", {.tp = 2, .family = description(temp, rest)}); },
                  {.says = {"spec.json", says}});
  };
  const std::string a = R"([{"name": "a", "plan": "colwise", "shape": [4, 4])";
  refused(a + R"(, "stride": 3}])", "a: \"stride\": dim 0 has 4 elements, which are no 3 equal parts");
  refused(a + R"(, "stride": 0}])", "a: \"stride\": 0 is not a size");
  refused(a + R"(, "strides": 2}])", "the key \"strides\" is not known");
  refused(R"([{"name": "a", "plan": "replicate", "shape": [4, 4], "stride": 2}])",
          "\"stride\" is 2, expected a plan of");
  refused(R"([{"name": "a", "plan": "packed_colwise", "shape": [4, 4], "stride": 2}])",
          "\"stride\" is 2, expected a plan of");
  const std::string fused = R"(], "fused": [{"module": "m", "name": "ab", "linears": ["a", "b"]}])";
  const std::string m_a = R"([{"name": "m.a", "plan": "rowwise", "shape": [4, 4]}, )";
  refused(m_a + R"({"name": "m.b", "plan": "colwise", "shape": [4, 4]})" + fused, "m.b needs the plan rowwise");
  refused(m_a + R"({"name": "m.b", "plan": "rowwise", "shape": [4, 4], "bias": true})" + fused,
          "m.b is split along its inputs, and so it cannot have a bias");
}

/// Has the config.json of ranks name a model that nobody knows, or removes it.
void hide_model(const fs::path& ranks, bool keeps_config) {
  if (keeps_config)
    merge_json(ranks / "config.json", {{"model_type", "your_model"}});
  else
    fs::remove(ranks / "config.json");
}

/// A way to make ranks.
struct Made {
  const char* layout;
  std::uint32_t tp;
  std::uint32_t pp = 1;
  bool fuse_qkv = false;

  RequestFields fields(const FamilySpec& family = {}) const {
    RequestFields fields{.layout = layout, .format = Format::kXser, .tp = tp, .pp = pp, .family = family};
    if (layout == std::string("ranks")) fields.format = Format::kSafetensors;
    if (fuse_qkv) fields.options = {"fuse-qkv"};
    return fields;
  }
};

TEST_CASE("contributing-custom-models line 30: the description that metadata amounts to makes the same ranks") {
  for (const bool tied : {false, true})
    for (const std::uint64_t kv_heads : {2, 8})
      for (const Made& how : {Made{"ranks", 2, 1, true}, Made{"ranks", 4, 2, false}, Made{"ranks", 8, 1, true},
                              Made{"ranks", 1, 1, false}, Made{"optimum", 4, 1, true}, Made{"optimum", 2, 3, false}})
        DYNAMIC_SECTION((tied ? "tied, " : "") << kv_heads << " key/value heads, " << how.layout << " tp " << how.tp
                                               << " pp " << how.pp << (how.fuse_qkv ? " fused" : "")) {
          const Input input({.hidden = 32,
                             .layers = 3,
                             .heads = 8,
                             .kv_heads = kv_heads,
                             .tied = tied,
                             .attention_bias = true,
                             .mlp_bias = true},
                            how.fields(), 30);
          hide_model(input.path(), false);
          write_file(input / "spec.json", description_of_metadata(read_checkpoint(input.path(), ReadContext{})));
          INFO(read_file(input / "spec.json"));
          input.whole();
          Made again = how;  // of heads that are grouped, the description says that they are fused
          again.fuse_qkv = how.fuse_qkv && kv_heads % how.tp == 0;
          shard(input / "whole", input / "again", again.fields(read_family(input / "spec.json")));
          auto copy = snapshot(input / "again");
          for (const auto& [path, content] : snapshot(input.path()))
            if (path.starts_with("tensor_parallel_shards") || path.starts_with("shards")) {
              CAPTURE(path);
              if (path.find("mp_metadata") == std::string::npos) CHECK((copy[path] == content));
            }
        }
}

TEST_CASE("contributing-custom-models line 31: a custom model goes to another tp by its own metadata") {
  const Made targets[] = {{"optimum", 1}, {"optimum", 2}, {"optimum", 8},
                          {"ranks", 2},   {"ranks", 8},   {"presharded", 2}};
  for (const std::string source : {"optimum", "ranks"})
    for (const bool keeps_config : {false, true}) {
      const Input input({.hidden = 32, .heads = 8}, Made{source.c_str(), 4}.fields(), 31);
      hide_model(input.path(), keeps_config);
      for (const Made& target : targets)
        DYNAMIC_SECTION(source << " to " << target.layout << " tp " << target.tp
                               << (keeps_config ? "" : ", no config.json")) {
          RequestFields to{.layout = target.layout, .tp = target.tp};
          to.format = usual_format(*layout(to.layout));
          convert(input.path(), input / "converted", to);
          shard(input / "model", input / "expected", to);
          const auto got = snapshot(input / "converted");
          for (const auto& [path, content] : snapshot(input / "expected")) {
            if (path == "config.json") continue;
            CAPTURE(path);
            REQUIRE(got.count(path) == 1);
            if (path.find("mp_metadata") != std::string::npos)
              CHECK((nlohmann::json::parse(got.at(path)) == nlohmann::json::parse(content)));
            else if (path.ends_with(".pt") && source == "ranks")  // sorted by name: the order is lost
              CHECK((read_torch_tensors(input / "converted" / path) == read_torch_tensors(input / "expected" / path)));
            else
              CHECK((got.at(path) == content));
          }
        }
    }
}

TEST_CASE("contributing-custom-models line 31: stages of a custom model stay where they are") {
  const Input input({.layers = 4}, {.layout = "ranks", .tp = 2, .pp = 2, .cuts = {"model.layers.0"}}, 32);
  hide_model(input.path(), false);
  convert(input.path(), input / "converted", {.layout = "ranks", .tp = 1});
  const auto ranks = read_ranks(input / "converted");
  REQUIRE(ranks.size() == 2);
  CHECK(ranks.at("tp_rank_00_pp_rank_00").count("model.layers.1.mlp.down_proj.weight") == 0);
  CHECK(ranks.at("tp_rank_00_pp_rank_01").count("model.layers.1.mlp.down_proj.weight") == 1);
  CHECK(ranks.at("tp_rank_00_pp_rank_01").count("lm_head.weight") == 1);
  convert(input.path(), input / "one", {.layout = "ranks", .tp = 2, .pp = 1});
  check_refused([&] { convert(input / "one", input / "two", {.layout = "ranks", .tp = 2, .pp = 2}); },
                {.says = {"metadata of one pipeline stage", "lm_head.weight"}});
}

/// Checks that `directory` has the ranks of `expected`, whose metadata may be in another order.
void check_same_ranks(const fs::path& directory, const fs::path& expected) {
  const auto got = snapshot(directory);
  for (const auto& [path, content] : snapshot(expected)) {
    if (path == "config.json") continue;
    CAPTURE(path);
    REQUIRE(got.count(path) == 1);
    if (path.find("mp_metadata") != std::string::npos)
      CHECK((nlohmann::json::parse(got.at(path)) == nlohmann::json::parse(content)));
    else
      CHECK((got.at(path) == content));
  }
}

TEST_CASE("contributing-custom-models line 237: more ranks than a custom model has key/value heads replicate these") {
  for (const bool biased : {false, true})
    for (const std::uint32_t tp : {2, 8}) DYNAMIC_SECTION((biased ? "biased, " : "") << "tp " << tp) {
        const Input input({.hidden = 32, .heads = 8, .attention_bias = biased}, {.layout = "ranks", .tp = 1}, 33);
        hide_model(input.path(), true);
        convert(input.path(), input / "converted", {.layout = "ranks", .tp = tp});
        shard(input / "model", input / "expected", {.layout = "ranks", .tp = tp});
        check_same_ranks(input / "converted", input / "expected");
        write_file(input / "spec.json", description_of_metadata(read_checkpoint(input.path(), ReadContext{})));
        shard(input / "model", input / "again",
              {.layout = "ranks", .tp = tp, .family = read_family(input / "spec.json")});
        check_same_ranks(input / "again", input / "expected");
      }
}

TEST_CASE("contributing-custom-models line 237: heads that metadata does not record are those of config.json") {
  const Input input({}, {.layout = "ranks", .tp = 2}, 33);
  hide_model(input.path(), true);
  merge_json(input.path() / "config.json", {{"num_attention_heads", 8}});  // the head sizes differ
  check_refused([&] { convert(input.path(), input / "converted", {.layout = "ranks", .tp = 4}); },
                {.kind = ErrorKind::kUsage,
                 .says = "has 2 groups of heads, which 4 ranks do not divide",
                 .hint = "\"attention\" (docs/families.md)"});
  hide_model(input.path(), false);
  const auto job = plan_convert(convert_request(input.path(), input / "converted", {.layout = "ranks", .tp = 4}));
  CHECK_THAT(joined_notes(*job), Says("of a config.json (`config`)"));
}

}  // namespace
}  // namespace reshard::test
