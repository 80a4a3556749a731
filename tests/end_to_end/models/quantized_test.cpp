// Quantised checkpoints, as each method stores its linears. The tensors are made here, without what the library knows of
// the methods.

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "support/checkpoints.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/random.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

using json = nlohmann::json;

constexpr std::uint64_t kHidden = 64, kHeads = 4, kKvHeads = 4, kHeadDim = 16, kVocabulary = 96;

/// One tensor of a linear: its dims belong to outputs or inputs of the linear ('o', 'i'), or to neither ('-'), with so
/// many of them to one element.
struct Part {
  const char* leaf;
  DType dtype;
  struct Dim {
    char of;
    std::uint64_t per;
  };
  std::vector<Dim> dims;
};

struct Method {
  const char* name;
  json config;
  std::vector<Part> parts;
};

/// What linears of 16 groups, blocks of 16 and the like are stored as.
std::vector<Method> methods() {
  const json pack = {{"num_bits", 4}, {"strategy", "group"}, {"group_size", 16}, {"symmetric", true}, {"type", "int"}};
  const auto groups = [](json weights, const char* format) {
    return json{{"quant_method", "compressed-tensors"},
                {"format", format},
                {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
  };
  json ordered = pack;
  ordered["actorder"] = "group";
  json asymmetric = pack;
  asymmetric["symmetric"] = false;
  const Part i4{"weight_packed", DType::kI32, {{'o', 1}, {'i', 8}}};
  const Part shape{"weight_shape", DType::kI64, {{'-', 2}}};
  return {
      {"fp8 blocks",
       {{"quant_method", "fp8"}, {"weight_block_size", {16, 16}}},
       {{"weight", DType::kF8E4M3, {{'o', 1}, {'i', 1}}}, {"weight_scale_inv", DType::kF32, {{'o', 16}, {'i', 16}}}}},
      {"fp8 of a tensor",
       {{"quant_method", "fp8"}, {"weight_block_size", nullptr}},
       {{"weight", DType::kF8E4M3, {{'o', 1}, {'i', 1}}}, {"weight_scale_inv", DType::kBF16, {}}}},
      {"AutoFP8",
       {{"quant_method", "fp8"}, {"activation_scheme", "static"}},
       {{"weight", DType::kF8E4M3, {{'o', 1}, {'i', 1}}},
        {"weight_scale", DType::kF32, {}},
        {"input_scale", DType::kF32, {{'-', 1}}}}},
      {"FP8 dynamic",
       groups({{"num_bits", 8}, {"strategy", "channel"}, {"type", "float"}}, "float-quantized"),
       {{"weight", DType::kF8E4M3, {{'o', 1}, {'i', 1}}}, {"weight_scale", DType::kBF16, {{'o', 1}, {'-', 1}}}}},
      {"W4A16", groups(pack, "pack-quantized"), {i4, {"weight_scale", DType::kBF16, {{'o', 1}, {'i', 16}}}, shape}},
      {"W4A16 asymmetric",
       groups(asymmetric, "pack-quantized"),
       {i4,
        {"weight_scale", DType::kBF16, {{'o', 1}, {'i', 16}}},
        {"weight_zero_point", DType::kI32, {{'o', 8}, {'i', 16}}},
        shape}},
      {"W4A16 in another order",
       groups(ordered, "pack-quantized"),
       {i4, {"weight_scale", DType::kBF16, {{'o', 1}, {'I', 16}}}, {"weight_g_idx", DType::kI32, {{'i', 1}}}, shape}},
      {"NVFP4",
       groups({{"num_bits", 4}, {"strategy", "tensor_group"}, {"group_size", 16}, {"type", "float"}},
              "nvfp4-pack-quantized"),
       {{"weight_packed", DType::kU8, {{'o', 1}, {'i', 2}}},
        {"weight_scale", DType::kF8E4M3, {{'o', 1}, {'i', 16}}},
        {"weight_global_scale", DType::kF32, {{'-', 1}}},
        {"input_global_scale", DType::kF32, {{'-', 1}}}}},
      {"ModelOpt FP8",
       {{"quant_method", "modelopt"}, {"quant_algo", "FP8"}},
       {{"weight", DType::kF8E4M3, {{'o', 1}, {'i', 1}}},
        {"weight_scale", DType::kF32, {}},
        {"input_scale", DType::kF32, {}}}},
      {"ModelOpt NVFP4",
       {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}},
       {{"weight", DType::kU8, {{'o', 1}, {'i', 2}}},
        {"weight_scale", DType::kF8E4M3, {{'o', 1}, {'i', 16}}},
        {"weight_scale_2", DType::kF32, {}},
        {"input_scale", DType::kF32, {}}}},
      {"GPTQ",
       {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 16}, {"desc_act", false}},
       {{"qweight", DType::kI32, {{'i', 8}, {'o', 1}}},
        {"qzeros", DType::kI32, {{'i', 16}, {'o', 8}}},
        {"scales", DType::kF16, {{'i', 16}, {'o', 1}}},
        {"g_idx", DType::kI32, {{'i', 1}}},
        {"bias", DType::kF16, {{'o', 1}}}}},
      {"GPTQ in another order",
       {{"quant_method", "gptq"}, {"bits", 8}, {"group_size", 16}, {"desc_act", true}},
       {{"qweight", DType::kI32, {{'i', 4}, {'o', 1}}},
        {"qzeros", DType::kI32, {{'I', 16}, {'o', 4}}},
        {"scales", DType::kF16, {{'I', 16}, {'o', 1}}},
        {"g_idx", DType::kI32, {{'i', 1}}}}},
      {"AWQ",
       {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 16}, {"version", "gemm"}},
       {{"qweight", DType::kI32, {{'i', 1}, {'o', 8}}},
        {"qzeros", DType::kI32, {{'i', 16}, {'o', 8}}},
        {"scales", DType::kF16, {{'i', 16}, {'o', 1}}}}},
      {"ModelOpt MXFP8",
       {{"quant_method", "modelopt"}, {"quant_algo", "MXFP8"}},
       {{"weight", DType::kF8E4M3, {{'o', 1}, {'i', 1}}}, {"weight_scale", DType::kU8, {{'o', 1}, {'i', 32}}}}},
      {"MXFP8",
       {{"quant_method", "mxfp8"}},
       {{"weight", DType::kF8E4M3, {{'o', 1}, {'i', 1}}}, {"weight_scale_inv", DType::kU8, {{'o', 1}, {'i', 32}}}}}};
}

struct Linear {
  std::string module;
  std::uint64_t outputs, inputs;
  bool by_rows;  // split along its inputs
};

std::vector<Linear> linears(std::uint64_t intermediate) {
  std::vector<Linear> all;
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    for (const char* name : {"q_proj", "k_proj", "v_proj"})
      all.push_back({layer + std::string("self_attn.") + name, kHeads * kHeadDim, kHidden, false});
    all.push_back({layer + std::string("self_attn.o_proj"), kHidden, kHeads * kHeadDim, true});
    for (const char* name : {"gate_proj", "up_proj"})
      all.push_back({layer + std::string("mlp.") + name, intermediate, kHidden, false});
    all.push_back({layer + std::string("mlp.down_proj"), kHidden, intermediate, true});
  }
  return all;
}

Dims shape_of(const Part& part, const Linear& linear) {
  Dims shape;
  for (const auto& [of, per] : part.dims) {
    const std::uint64_t size = of == 'o' ? linear.outputs : of == '-' ? per : linear.inputs;
    shape.push_back(of == '-' ? per : (size + per - 1) / per);
  }
  return shape;
}

/// config.json of a tiny model; what the family wants besides is up to the caller.
json config_of(const char* model_type, const json& quantization) {
  return {{"model_type", model_type},        {"hidden_size", kHidden},
          {"num_hidden_layers", 2},          {"num_attention_heads", kHeads},
          {"num_key_value_heads", kKvHeads}, {"vocab_size", kVocabulary},
          {"tie_word_embeddings", false},    {"quantization_config", quantization}};
}

/// A tiny llama of random bytes, quantised by `method`.
TensorMap write_quantized(const Method& method, std::uint64_t intermediate, const fs::path& directory) {
  Random random(5);
  TensorMap tensors;
  const auto add = [&](const std::string& name, DType dtype, const Dims& shape) {
    tensors[name] = random_tensor(random, dtype, shape);
  };
  for (const Linear& linear : linears(intermediate))
    for (const Part& part : method.parts) add(linear.module + "." + part.leaf, part.dtype, shape_of(part, linear));
  for (const char* layer : {"model.layers.0.", "model.layers.1."})
    for (const char* norm : {"input_layernorm.weight", "post_attention_layernorm.weight"})
      add(layer + std::string(norm), DType::kBF16, {kHidden});
  add("model.embed_tokens.weight", DType::kBF16, {kVocabulary, kHidden});
  add("lm_head.weight", DType::kBF16, {kVocabulary, kHidden});
  add("model.norm.weight", DType::kBF16, {kHidden});
  json config = config_of("llama", method.config);
  config["architectures"] = {"LlamaForCausalLM"};
  config["intermediate_size"] = intermediate;
  fs::create_directories(directory);
  write_file(directory / "config.json", config.dump(2));
  write_safetensors(directory / "model.safetensors", tensors);
  return tensors;
}

void erase_key(const fs::path& config, const char* key) {
  json changed = json::parse(read_file(config));
  changed.erase(key);
  write_file(config, changed.dump());
}

TEST_CASE("Quantised linears are split with their scales, and come back") {
  const Method method = GENERATE(from_range(methods()));
  const auto* const name = GENERATE("ranks", "nxd", "presharded");
  DYNAMIC_SECTION(method.name << ", " << name) {
    const TempDir temp;
    const TensorMap tensors = write_quantized(method, 128, temp / "model");
    ShardRequest request = shard_request(temp / "model", temp / "out", 2, std::string(name) == "presharded" ? 1 : 2);
    request.target.layout = layout(name);
    shard(request);
    CHECK((consolidated(temp / "out", temp / "whole") == tensors));
  }
}

TEST_CASE("On each rank, the parts of a quantised linear belong to the same outputs and inputs") {
  const Method method = GENERATE(from_range(methods()));
  // 144 are 9 blocks of 16, 136 and 72 none of them whole.
  const auto [tp, intermediate] =
      GENERATE(table<std::uint32_t, std::uint64_t>({{2, 144}, {4, 144}, {4, 136}, {2, 72}}));
  DYNAMIC_SECTION(method.name << ", tp " << tp << ", intermediate_size " << intermediate) {
    std::uint64_t block = 16;
    for (const Part& part : method.parts)
      for (const auto& dim : part.dims) block = std::max<std::uint64_t>(block, dim.per);
    if (block > 16 && tp == 4) return;  // blocks of 32 part heads: that is the next test's
    const TempDir temp;
    const TensorMap tensors = write_quantized(method, intermediate, temp / "model");
    ShardRequest request = deployed_request(layout("presharded"), temp / "model", temp / "out", tp);
    request.target.options.set_flag("pad", true);
    shard(request);
    CHECK((consolidated(temp / "out", temp / "whole") == tensors));

    const TensorMap rank = read_weights(temp / "out").at("weights/tp0_sharded_checkpoint.safetensors");
    std::map<std::uint64_t, std::uint64_t> sizes;  // of whole outputs or inputs → on a rank
    for (const Linear& linear : linears(intermediate)) {
      const std::uint64_t whole = linear.by_rows ? linear.inputs : linear.outputs;
      for (const Part& part : method.parts) {
        CAPTURE(linear.module, part.leaf);
        const Dims held = rank.at(linear.module + "." + part.leaf).shape;
        const Dims own = shape_of(part, linear);
        REQUIRE(held.size() == own.size());
        for (std::size_t d = 0; d < own.size(); ++d) {
          if (part.dims[d].of != (linear.by_rows ? 'i' : 'o')) {
            CHECK(held[d] == own[d]);
            continue;
          }
          const std::uint64_t size = held[d] * part.dims[d].per;
          CHECK(sizes.try_emplace(whole, size).first->second == size);
          CHECK(size * tp >= whole);
          CHECK(size * tp < whole + block * tp);  // less than a block of padding for each rank
        }
      }
    }
  }
}

TEST_CASE("Projections of attention are not padded where blocks would part heads from theirs") {
  const TempDir temp;
  Method method = methods().at(0);
  method.config["weight_block_size"] = {32, 32};
  method.parts.back().dims = {{'o', 32}, {'i', 32}};
  write_quantized(method, 128, temp / "model");
  ShardRequest request = deployed_request(layout("presharded"), temp / "model", temp / "out", 4);
  request.target.options.set_flag("pad", true);
  check_refused([&] { plan_shard(request); }, {.kind = ErrorKind::kUsage,
                                               .says = {"blocks of 32", "which 4 ranks do not divide",
                                                        "would part query heads from their key/value heads"},
                                               .hint = "1, 2"});
}

TEST_CASE("Scales of groups in another order are on every rank, which a note says") {
  const auto all = methods();
  for (const Method& method : all) {
    const TempDir temp;
    write_quantized(method, 128, temp / "model");
    const auto job = plan_shard(shard_request(temp / "model", temp / "out", 2));
    const bool other_order = std::string(method.name).ends_with("in another order");
    const std::string notes = join(job->notes, "\n");
    CAPTURE(method.name, notes);
    CHECK((notes.find("scales") != std::string::npos) == other_order);
    CHECK_THAT(notes, !Says("replicated"));  // all linears are split
  }
}

TEST_CASE("A scale that is missing is noticed") {
  for (const Method& method : methods()) {
    const TempDir temp;
    TensorMap tensors = write_quantized(method, 128, temp / "model");
    for (const Part& part : method.parts) {
      const std::string leaf = part.leaf;
      if (leaf.starts_with("input_") || leaf == "g_idx" || leaf == "weight_g_idx" || leaf == "bias") continue;
      TensorMap fewer = tensors;
      fewer.erase("model.layers.1.mlp.down_proj." + leaf);
      write_safetensors(temp / "model/model.safetensors", fewer);
      CAPTURE(method.name, leaf);
      const Error error = error_of([&] { plan_shard(shard_request(temp / "model", temp / "out", 2)); });
      CHECK(error.kind() == ErrorKind::kBadInput);
      // Without what marks it as quantised, the parts of it that are not known otherwise are named.
      CHECK_THAT(error.what(), Says("model.layers.1.mlp.down_proj."));
      if (leaf == "weight_scale_inv")
        CHECK_THAT(error.what(), Says("model.layers.1.mlp.down_proj." + leaf + ": is missing"));
    }
  }
}

TEST_CASE("A quantization_config that is another model's, or gone, is named") {
  const std::vector<Method> all = methods();
  const Method gptq =
      *std::find_if(all.begin(), all.end(), [](const Method& one) { return std::string(one.name) == "GPTQ"; });
  const TempDir temp;
  write_quantized(gptq, 128, temp / "model");
  shard(shard_request(temp / "model", temp / "shards", 2));
  const auto refused = [&](const char* what, const char* hint) {
    check_refused([&] { plan_shard(shard_request(temp / "model", temp / "out", 2)); }, {.says = what, .hint = hint});
  };
  json config = json::parse(read_file(temp / "model/config.json"));
  config["quantization_config"]["group_size"] = 32;
  write_file(temp / "model/config.json", config.dump());
  refused("but config.json asks for", "bits, groups and blocks in quantization_config");
  erase_key(temp / "model/config.json", "quantization_config");
  refused("not explained by config.json", "config.json has no quantization_config");
  erase_key(temp / "shards/config.json", "quantization_config");
  ConsolidateRequest back;
  back.source.path = temp / "shards";
  back.output_directory = temp / "whole";
  CHECK_THAT(error_of([&] { consolidate(back); }).hint(), Says("config.json has no quantization_config"));
}

TEST_CASE("Scales of the key/value cache, and configurations in files of their own, are known") {
  const std::vector<Method> all = methods();
  const auto method_of = [&](std::string_view name) {
    return *std::find_if(all.begin(), all.end(), [&](const Method& method) { return name == method.name; });
  };
  const TempDir temp;
  const auto comes_back = [&](const TensorMap& tensors) {
    write_safetensors(temp / "model/model.safetensors", tensors);
    fs::remove_all(temp / "out");
    shard(shard_request(temp / "model", temp / "out", 2, 2));
    CHECK((consolidated(temp / "out", temp / "whole") == tensors));
  };
  SECTION("cache") {
    TensorMap tensors = write_quantized(method_of("FP8 dynamic"), 128, temp / "model");
    Random random(1);
    for (const char* name : {"model.layers.0.self_attn.k_scale", "model.layers.1.self_attn.v_scale"})
      tensors[name] = random_tensor(random, DType::kBF16, {1});
    comes_back(tensors);
  }
  SECTION("AutoGPTQ") {
    const TensorMap tensors = write_quantized(method_of("GPTQ"), 128, temp / "model");
    erase_key(temp / "model/config.json", "quantization_config");
    write_file(temp / "model/quantize_config.json", R"({"bits": 4, "group_size": 16, "desc_act": false})");
    comes_back(tensors);
  }
  SECTION("AutoAWQ") {
    const TensorMap tensors = write_quantized(method_of("AWQ"), 128, temp / "model");
    erase_key(temp / "model/config.json", "quantization_config");
    write_file(temp / "model/quant_config.json", R"({"w_bit": 4, "q_group_size": 16, "version": "GEMM"})");
    comes_back(tensors);
  }
  SECTION("ModelOpt") {
    const TensorMap tensors = write_quantized(method_of("ModelOpt FP8"), 128, temp / "model");
    erase_key(temp / "model/config.json", "quantization_config");
    write_file(temp / "model/hf_quant_config.json", R"({"producer": {"name": "modelopt"}, "quantization":
               {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}})");
    comes_back(tensors);
  }
}

TEST_CASE("Linears of one model may be quantised in different ways") {
  const bool packed_first = GENERATE(true, false);
  const std::vector<Method> all = methods();
  const TempDir temp;
  TensorMap tensors = write_quantized(all.at(3), 128, temp / "model");  // FP8 by channels
  const TensorMap packed = write_quantized(all.at(4), 128, temp / "other");
  json config = json::parse(read_file(temp / "other/config.json"));
  json& groups = config["quantization_config"]["config_groups"];
  groups["group_0"]["format"] = "pack-quantized";
  if (!packed_first) groups = json{{"group_9", groups["group_0"]}};
  groups["group_1"] = all.at(3).config["config_groups"]["group_0"];
  groups["group_1"]["format"] = "float-quantized";
  groups["group_2"] = {{"targets", {"Attention"}}, {"weights", nullptr}};
  config["quantization_config"]["format"] = "mixed-precision";
  write_file(temp / "model/config.json", config.dump());
  std::erase_if(tensors, [](const auto& item) { return item.first.find(".mlp.") != std::string::npos; });
  for (const auto& [name, tensor] : packed)
    if (name.find(".mlp.") != std::string::npos) tensors[name] = tensor;
  write_safetensors(temp / "model/model.safetensors", tensors);
  shard(shard_request(temp / "model", temp / "out", 2));
  CHECK((consolidated(temp / "out", temp / "whole") == tensors));
}

TEST_CASE("ModelOpt's mixed precision has linears in FP8 and in NVFP4, whichever keys say so") {
  const TempDir temp;
  const std::vector<Method> all = methods();
  const auto named = [&](const char* name) {
    return *std::find_if(all.begin(), all.end(), [&](const Method& one) { return one.name == std::string(name); });
  };
  TensorMap tensors = write_quantized(named("ModelOpt FP8"), 128, temp / "model");
  const TensorMap packed = write_quantized(named("ModelOpt NVFP4"), 128, temp / "other");
  std::erase_if(tensors, [](const auto& item) { return item.first.find(".mlp.") != std::string::npos; });
  for (const auto& [name, tensor] : packed)
    if (name.find(".mlp.") != std::string::npos) tensors[name] = tensor;
  write_safetensors(temp / "model/model.safetensors", tensors);
  json config = json::parse(read_file(temp / "model/config.json"));
  json& quantization = config["quantization_config"];
  quantization["quant_algo"] = "MIXED_PRECISION";
  SECTION("the method by name, the linears by quantized_layers") {
    quantization["quantized_layers"] = {{"model.layers.0.mlp.up_proj", {{"quant_algo", "NVFP4"}}}};
  }
  SECTION("the method by the producer, the linears by config_groups") {
    quantization.erase("quant_method");
    quantization["producer"] = {{"name", "modelopt"}, {"version", "0.31"}};
    quantization["config_groups"] = {{"group_0", {{"weights", {{"num_bits", 8}, {"type", "float"}}}}},
                                     {"group_1", {{"weights", {{"num_bits", 4}, {"group_size", 16}}}}}};
  }
  write_file(temp / "model/config.json", config.dump());
  shard(shard_request(temp / "model", temp / "out", 2));
  CHECK((consolidated(temp / "out", temp / "whole") == tensors));
}

TEST_CASE("AutoRound's packings are those of GPTQ and AWQ") {
  const std::vector<Method> all = methods();
  for (const char* name : {"GPTQ", "AWQ"}) {
    CAPTURE(name);
    const TempDir temp;
    Method method =
        *std::find_if(all.begin(), all.end(), [&](const Method& one) { return one.name == std::string(name); });
    method.config = {{"quant_method", "auto-round"},
                     {"bits", 4},
                     {"group_size", 16},
                     {"packing_format", name == std::string("AWQ") ? "auto_round:auto_awq" : "auto_round:auto_gptq"}};
    const TensorMap tensors = write_quantized(method, 128, temp / "model");
    shard(shard_request(temp / "model", temp / "out", 2));
    CHECK((consolidated(temp / "out", temp / "whole") == tensors));
  }
}

TEST_CASE("What mlx-lm has quantised is refused by its name, wherever config.json says so") {
  const TempDir temp;
  Method method = methods().at(0);
  method.config = {{"bits", 4}, {"group_size", 64}};
  method.parts = {{"weight", DType::kU32, {{'o', 1}, {'i', 8}}},
                  {"scales", DType::kBF16, {{'o', 1}, {'i', 64}}},
                  {"biases", DType::kBF16, {{'o', 1}, {'i', 64}}}};
  write_quantized(method, 128, temp / "model");
  SECTION("as a quantization_config without a method") {}
  SECTION("as \"quantization\"") {
    json config = json::parse(read_file(temp / "model/config.json"));
    config["quantization"] = config["quantization_config"];
    config.erase("quantization_config");
    write_file(temp / "model/config.json", config.dump());
  }
  check_refused([&] { plan_shard(shard_request(temp / "model", temp / "out", 2)); },
                {.kind = ErrorKind::kUnsupported, .says = "quantised by mlx", .hint = "before it was quantised"});
}

TEST_CASE("Groups that quantise in different ways under the same names are refused") {
  const TempDir temp;
  Method method = methods().at(4);
  json& groups = method.config["config_groups"];
  groups["group_1"] = groups["group_0"];
  groups["group_1"]["weights"]["num_bits"] = 8;
  write_quantized(method, 128, temp / "model");
  check_refused([&] { plan_shard(shard_request(temp / "model", temp / "out", 2)); },
                {.kind = ErrorKind::kUnsupported, .says = "in different ways under the same names"});
}

/// Two layers of phi3, whose projections are packed, in FP8 with blocks of 16.
void write_packed(std::uint64_t intermediate, const fs::path& directory) {
  Random random(5);
  TensorMap tensors;
  const auto add = [&](const std::string& name, DType dtype, const Dims& shape) {
    tensors[name] = random_tensor(random, dtype, shape);
  };
  const auto add_linear = [&](const std::string& module, std::uint64_t out, std::uint64_t in) {
    add(module + ".weight", DType::kF8E4M3, {out, in});
    add(module + ".weight_scale_inv", DType::kF32, {(out + 15) / 16, (in + 15) / 16});
  };
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    add_linear(layer + std::string("self_attn.qkv_proj"), 3 * kHidden, kHidden);
    add_linear(layer + std::string("self_attn.o_proj"), kHidden, kHidden);
    add_linear(layer + std::string("mlp.gate_up_proj"), 2 * intermediate, kHidden);
    add_linear(layer + std::string("mlp.down_proj"), kHidden, intermediate);
    for (const char* norm : {"input_layernorm.weight", "post_attention_layernorm.weight"})
      add(layer + std::string(norm), DType::kBF16, {kHidden});
  }
  add("model.embed_tokens.weight", DType::kBF16, {kVocabulary, kHidden});
  add("lm_head.weight", DType::kBF16, {kVocabulary, kHidden});
  add("model.norm.weight", DType::kBF16, {kHidden});
  json config = config_of("phi3", methods().front().config);
  config["intermediate_size"] = intermediate;
  fs::create_directories(directory);
  write_file(directory / "config.json", config.dump(2));
  write_safetensors(directory / "model.safetensors", tensors);
}

TEST_CASE("Packed linears are refused where padding would part them from others or their scales") {
  const auto [intermediate, tp] = GENERATE(table<std::uint64_t, std::uint32_t>({{48, 2}, {72, 2}, {136, 4}}));
  DYNAMIC_SECTION("intermediate_size " << intermediate << ", tp " << tp) {
    const TempDir temp;
    write_packed(intermediate, temp / "model");
    ShardRequest request = deployed_request(layout("presharded"), temp / "model", temp / "out", tp);
    request.target.options.set_flag("pad", true);
    check_refused([&] { plan_shard(request); }, {.kind = ErrorKind::kUsage, .says = "gate_up_proj"});
  }
}

TEST_CASE("Stacked experts are quantised in blocks of their own, whose absence is noticed") {
  Random random(6);
  const TempDir temp;
  const std::uint64_t experts = 2, size = 48;  // 3 blocks of 16
  TensorMap tensors;
  const auto add = [&](const std::string& name, DType dtype, const Dims& shape) {
    tensors[name] = random_tensor(random, dtype, shape);
  };
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    const std::string attention = layer + std::string("self_attn."), mlp = layer + std::string("mlp.");
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"})
      add(attention + name + ".weight", DType::kBF16, {kHidden, kHidden});
    for (const char* name : {"q_norm", "k_norm"}) add(attention + name + ".weight", DType::kBF16, {kHeadDim});
    add(mlp + "experts.gate_up_proj", DType::kF8E4M3, {experts, kHidden, 2 * size});
    add(mlp + "experts.gate_up_proj_scale_inv", DType::kF32, {experts, kHidden / 16, 2 * size / 16});
    add(mlp + "experts.down_proj", DType::kF8E4M3, {experts, size, kHidden});
    add(mlp + "experts.down_proj_scale_inv", DType::kF32, {experts, size / 16, kHidden / 16});
    add(mlp + "gate.weight", DType::kBF16, {experts, kHidden});
    for (const char* norm : {"input_layernorm.weight", "post_attention_layernorm.weight"})
      add(layer + std::string(norm), DType::kBF16, {kHidden});
  }
  add("model.embed_tokens.weight", DType::kBF16, {kVocabulary, kHidden});
  add("lm_head.weight", DType::kBF16, {kVocabulary, kHidden});
  add("model.norm.weight", DType::kBF16, {kHidden});
  json config = config_of("qwen3_vl_moe_text", methods().front().config);
  config["moe_intermediate_size"] = size;
  config["head_dim"] = kHeadDim;
  config["num_experts"] = experts;
  fs::create_directories(temp / "model");
  write_file(temp / "model/config.json", config.dump(2));
  write_safetensors(temp / "model/model.safetensors", tensors);
  const auto sharded = [&](std::uint32_t tp, bool pad) {
    fs::remove_all(temp / "out");
    ShardRequest request = deployed_request(layout("presharded"), temp / "model", temp / "out", tp);
    request.target.options.set_flag("pad", pad);
    shard(request);
    return consolidated(temp / "out", temp / "whole");
  };
  CHECK((sharded(1, false) == tensors));
  // 3 blocks over 2 ranks: neither without padding nor with it, as gate and up are packed.
  for (const bool pad : {false, true}) CHECK(error_of([&] { sharded(2, pad); }).kind() == ErrorKind::kUsage);
  tensors.erase("model.layers.1.mlp.experts.down_proj_scale_inv");
  write_safetensors(temp / "model/model.safetensors", tensors);
  CHECK_THAT(error_of([&] { sharded(1, false); }).what(), Says("model.layers.1.mlp.experts.down_proj_scale_inv"));
}

TEST_CASE("A layout without a place for scales refuses quantised models before it proposes a degree") {
  const TempDir temp;
  Method method = methods().at(0);
  write_quantized(method, 128, temp / "model");
  for (const std::uint32_t tp : {1, 16}) {
    const Error error =
        error_of([&] { plan_shard(deployed_request(layout("nxdi"), temp / "model", temp / "out", tp)); });
    CHECK(error.kind() == ErrorKind::kUnsupported);
    CHECK_THAT(error.what(), Says("has no place for the scales of quantised linears"));
    CHECK_THAT(error.hint(), !Says("TP degrees"));
  }
}

TEST_CASE("What bitsandbytes stores is refused with the reason, for 4 bits and for 8") {
  const TempDir temp;
  const json nf4 = {{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}, {"load_in_8bit", false}};
  const json int8 = {{"quant_method", "bitsandbytes"}, {"load_in_4bit", false}, {"load_in_8bit", true}};
  const bool four = GENERATE(true, false);
  Method method = methods().at(0);
  method.config = four ? nf4 : int8;
  method.parts = {{"weight", DType::kU8, {{'o', 1}, {'i', 1}}}};
  TensorMap tensors = write_quantized(method, 128, temp / "model");
  Random random(1);
  for (const Linear& linear : linears(128))
    if (four)
      tensors[linear.module + ".weight"] = random_tensor(random, DType::kU8, {linear.outputs * linear.inputs / 2, 1});
    else
      tensors[linear.module + ".SCB"] = random_tensor(random, DType::kF32, {linear.outputs});
  write_safetensors(temp / "model/model.safetensors", tensors);
  check_refused([&] { plan_shard(shard_request(temp / "model", temp / "out", 2)); },
                {.kind = ErrorKind::kUnsupported,
                 .says = four ? "cannot be partitioned: its weights are stored as one row"
                              : "cannot be partitioned: its outliers"});

  // Converted, scales stay in float32, as nothing else is read.
  const std::string scale = "weight.absmax";
  for (const Linear& linear : linears(128))
    if (four) tensors[linear.module + "." + scale] = random_tensor(random, DType::kF32, {7});
  write_safetensors(temp / "model/model.safetensors", tensors);
  ConvertRequest request = convert_request(temp / "model", temp / "cast");
  request.dtype = DType::kF16;
  convert(request);
  for (const auto& [name, tensor] : read_model(temp / "cast")) {
    CAPTURE(name);
    const bool is_scale = name.ends_with(scale) || name.ends_with(".SCB");
    if (is_scale || tensor.dtype == DType::kU8)
      CHECK((tensor == tensors.at(name)));
    else
      CHECK(tensor.dtype == DType::kF16);
  }
}

TEST_CASE("A quantization_config that makes no sense is told as what it is, and sizes of words that none has") {
  const std::tuple<json, ErrorKind, const char*> configs[] = {
      {{{"bits", 4}}, ErrorKind::kBadInput, "\"quantization_config\" has no \"quant_method\""},
      {{{"quant_method", 4}}, ErrorKind::kBadInput, "\"quant_method\" is 4, expected a string"},
      {"gptq", ErrorKind::kBadInput, "\"quantization_config\" is \"gptq\", expected an object"},
      {json::array(), ErrorKind::kBadInput, "\"quantization_config\" is [], expected an object"},
      {{{"quant_method", "gptq"}, {"bits", 3}}, ErrorKind::kUnsupported, "\"bits\" is 3; supported are 2, 4, 8"},
      {{{"quant_method", "gptq"}, {"bits", "4"}}, ErrorKind::kBadInput, "\"bits\" is \"4\", expected one of 2, 4, 8"}};
  for (const auto& [config, kind, says] : configs) {
    CAPTURE(says);
    const TempDir temp;
    Method method = methods().at(3);
    method.config = config;
    write_quantized(method, 128, temp / "model");
    const Error error = error_of([&] { plan_shard(shard_request(temp / "model", temp / "out", 2)); });
    CHECK((error.kind() == kind));
    CHECK_THAT(error.what(), Says(says));
    if (kind == ErrorKind::kUnsupported) CHECK_THAT(error.hint(), Says("before it was quantised"));
  }
}

TEST_CASE("A method that is known in a way that is not is refused with what the configuration says") {
  const std::pair<json, const char*> ways[] = {
      {{{"quant_method", "modelopt"}, {"quant_algo", "W4A8_AWQ"}}, "\"quant_algo\" is \"W4A8_AWQ\""},
      {{{"quant_method", "awq"}, {"bits", 4}, {"group_size", 16}, {"version", "gemv"}}, "\"version\" is \"gemv\""},
      {{{"quant_method", "mxfp4"}}, "known for gpt_oss alone"}};
  for (const auto& [config, says] : ways) {
    const TempDir temp;
    Method method = methods().at(3);
    method.config = config;
    write_quantized(method, 128, temp / "model");
    check_refused([&] { plan_shard(shard_request(temp / "model", temp / "out", 2)); },
                  {.kind = ErrorKind::kUnsupported, .says = says});
  }
}

}  // namespace
}  // namespace reshard::test
