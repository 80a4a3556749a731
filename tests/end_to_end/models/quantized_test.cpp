// Quantised checkpoints, as each method stores its linears. The tensors are made here, without what the library knows of
// the methods.

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>

#include "reshard/tensor/cast/numeric.h"
#include "support/architectures.h"
#include "support/checkpoints.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/spoilers.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

using nlohmann::json;

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
  const Part fp8{"weight", DType::kF8E4M3, {{'o', 1}, {'i', 1}}};
  return {
      {"fp8 blocks",
       {{"quant_method", "fp8"}, {"weight_block_size", {16, 16}}},
       {fp8, {"weight_scale_inv", DType::kF32, {{'o', 16}, {'i', 16}}}}},
      {"fp8 of a tensor",
       {{"quant_method", "fp8"}, {"weight_block_size", nullptr}},
       {fp8, {"weight_scale_inv", DType::kBF16, {}}}},
      {"AutoFP8",
       {{"quant_method", "fp8"}, {"activation_scheme", "static"}},
       {fp8, {"weight_scale", DType::kF32, {}}, {"input_scale", DType::kF32, {{'-', 1}}}}},
      {"FP8 dynamic",
       groups({{"num_bits", 8}, {"strategy", "channel"}, {"type", "float"}}, "float-quantized"),
       {fp8, {"weight_scale", DType::kBF16, {{'o', 1}, {'-', 1}}}}},
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
       {fp8, {"weight_scale", DType::kF32, {}}, {"input_scale", DType::kF32, {}}}},
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
       {fp8, {"weight_scale", DType::kU8, {{'o', 1}, {'i', 32}}}}},
      {"MXFP8", {{"quant_method", "mxfp8"}}, {fp8, {"weight_scale_inv", DType::kU8, {{'o', 1}, {'i', 32}}}}}};
}

Method method_of(std::string_view name) {
  for (Method& method : methods())
    if (name == method.name) return std::move(method);
  FAIL("no method " << name);
  return {};
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

/// Tensors of random bytes, and a config.json, in the making.
struct Drawn {
  TensorMap tensors;
  json config;
  Random random{5};

  void add(const std::string& name, DType dtype, const Dims& shape) {
    tensors[name] = random_tensor(random, dtype, shape);
  }
  /// Norms, embedding and head.
  void add_unquantized() {
    for (const std::string layer : {"model.layers.0.", "model.layers.1."})
      for (const char* norm : {"input_layernorm.weight", "post_attention_layernorm.weight"})
        add(layer + norm, DType::kBF16, {kHidden});
    for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"})
      add(name, DType::kBF16, {kVocabulary, kHidden});
    add("model.norm.weight", DType::kBF16, {kHidden});
  }
  void write(const fs::path& directory) const {
    write_file(directory / "config.json", config.dump(2));
    write_safetensors(directory / "model.safetensors", tensors);
  }
};

/// A tiny llama, quantised by `method`.
TensorMap write_quantized(const Method& method, const fs::path& directory, std::uint64_t intermediate = 128) {
  Drawn drawn;
  for (const Linear& linear : linears(intermediate))
    for (const Part& part : method.parts)
      drawn.add(linear.module + "." + part.leaf, part.dtype, shape_of(part, linear));
  drawn.add_unquantized();
  drawn.config = config_of("llama", method.config);
  drawn.config["architectures"] = {"LlamaForCausalLM"};
  drawn.config["intermediate_size"] = intermediate;
  drawn.write(directory);
  return drawn.tensors;
}

/// The model of `write_quantized`, written as `to` says.
Input quantized(const Method& method, const RequestFields& to = {}, std::uint64_t intermediate = 128) {
  return Input(to, [&](const fs::path& directory) { return write_quantized(method, directory, intermediate); });
}

std::unique_ptr<Job> plan(const Input& input, std::uint32_t tp = 2) {
  return plan_shard(shard_request(input / "model", input / "out", tp));
}

/// Writes `tensors` for those of the model, which must come back from two ranks.
void check_comes_back(const Input& input, const TensorMap& tensors) {
  write_safetensors(input / "model/model.safetensors", tensors);
  fs::remove_all(input / "out");
  shard(input / "model", input / "out", {.tp = 2});
  CHECK((consolidated(input / "out", input / "whole") == tensors));
}

TEST_CASE("Quantised linears are split with their scales, and come back") {
  const Method method = GENERATE(from_range(methods()));
  const std::string name = GENERATE("ranks", "nxd", "presharded");
  DYNAMIC_SECTION(method.name << ", " << name) {
    const Input input = quantized(method, {.layout = name, .tp = 2, .pp = name == "presharded" ? 1 : 2});
    CHECK((input.whole() == input.tensors));
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
    const Input input = quantized(method, {.layout = "presharded", .tp = tp, .options = {"pad"}}, intermediate);
    CHECK((input.whole() == input.tensors));

    const TensorMap rank = read_tensors(input.rank_file(0));
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
  Method method = method_of("fp8 blocks");
  method.config["weight_block_size"] = {32, 32};
  method.parts.back().dims = {{'o', 32}, {'i', 32}};
  check_refused(
      [&] { quantized(method, {.layout = "presharded", .tp = 4, .options = {"pad"}}); },
      {.kind = ErrorKind::kUsage,
       .says = {"blocks of 32", "which 4 ranks do not divide", "would part query heads from their key/value heads"},
       .hint = "1, 2"});
}

TEST_CASE("Scales of groups in another order are on every rank, which a note says") {
  for (const Method& method : methods()) {
    const bool other_order = std::string(method.name).ends_with("in another order");
    const std::string notes = joined_notes(*plan(quantized(method)));
    CAPTURE(method.name, notes);
    CHECK((notes.find("scales") != std::string::npos) == other_order);
    CHECK_THAT(notes, !Says("replicated"));  // all linears are split
  }
}

TEST_CASE("Trainers are not said to load the ranks of a quantised model") {
  const Input input = quantized(method_of("fp8 blocks"));
  for (const char* layout : {"nxd", "optimum", "ranks"}) {
    CAPTURE(layout);
    const std::string notes = joined_notes(*plan_shard(
        shard_request(input / "model", input / "out", {.layout = layout, .format = Format::kXser, .tp = 2})));
    CHECK_THAT(notes, !Says("loads these files"));
    CHECK_THAT(notes, Says("no parameters for quantised weights"));
  }
}

TEST_CASE("A scale that is missing is noticed") {
  for (const Method& method : methods()) {
    const Input input = quantized(method);
    for (const Part& part : method.parts) {
      const std::string leaf = part.leaf;
      if (leaf.starts_with("input_") || leaf == "g_idx" || leaf == "weight_g_idx" || leaf == "bias") continue;
      TensorMap fewer = input.tensors;
      fewer.erase("model.layers.1.mlp.down_proj." + leaf);
      write_safetensors(input / "model/model.safetensors", fewer);
      CAPTURE(method.name, leaf);
      // Without what marks it as quantised, the parts of it that are not known otherwise are named.
      check_refused([&] { plan(input); },
                    {.says = "model.layers.1.mlp.down_proj." +
                             (leaf == "weight_scale_inv" ? leaf + ": is missing" : std::string())});
    }
  }
}

TEST_CASE("A quantization_config that is another model's, or gone, is named") {
  const Input input = quantized(method_of("GPTQ"), {.layout = "ranks", .tp = 2});
  const auto refused = [&](const char* says, const char* hint) {
    check_refused([&] { plan(input); }, {.says = says, .hint = hint});
  };
  merge_json(input / "model/config.json", {{"quantization_config", {{"group_size", 32}}}});
  refused("has the shape [4, 8], but config.json, with defaults of its model_type, asks for [2, 8]",
          "bits, groups and blocks in quantization_config");
  merge_json(input / "model/config.json", {{"quantization_config", nullptr}});
  refused("not explained by config.json", "config.json has no quantization_config");
  merge_json(input / "out/config.json", {{"quantization_config", nullptr}});
  CHECK_THAT(input.refusal().hint(), Says("config.json has no quantization_config"));
}

TEST_CASE("Scales of the key/value cache are known") {
  Input input = quantized(method_of("FP8 dynamic"));
  for (const char* name : {"model.layers.0.self_attn.k_scale", "model.layers.1.self_attn.v_scale"})
    input.tensors[name] = random_tensor(input.random, DType::kBF16, {1});
  check_comes_back(input, input.tensors);
}

TEST_CASE("Configurations in files of their own are known") {
  const std::tuple<const char*, const char*, const char*> files[] = {
      {"GPTQ", "quantize_config.json", R"({"bits": 4, "group_size": 16, "desc_act": false})"},  // of AutoGPTQ
      {"AWQ", "quant_config.json", R"({"w_bit": 4, "q_group_size": 16, "version": "GEMM"})"},   // of AutoAWQ
      {"ModelOpt FP8", "hf_quant_config.json",
       R"({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}})"}};
  for (const auto& [method, file, text] : files) DYNAMIC_SECTION(method) {
      const Input input = quantized(method_of(method));
      merge_json(input / "model/config.json", {{"quantization_config", nullptr}});
      write_file(input / "model" / file, text);
      check_comes_back(input, input.tensors);
    }
}

/// The model of `a`, with the MLPs of `b`.
TensorMap with_mlps_of(TensorMap a, const TensorMap& b) {
  const auto is_mlp = [](const auto& item) { return item.first.find(".mlp.") != std::string::npos; };
  std::erase_if(a, is_mlp);
  std::copy_if(b.begin(), b.end(), std::inserter(a, a.end()), is_mlp);
  return a;
}

TEST_CASE("Linears of one model may be quantised in different ways") {
  const bool packed_first = GENERATE(true, false);
  const Method by_channels = method_of("FP8 dynamic");
  const Input input = quantized(by_channels), packed = quantized(method_of("W4A16"));
  json config = json::parse(read_file(packed / "model/config.json"));
  json& groups = config["quantization_config"]["config_groups"];
  groups["group_0"]["format"] = "pack-quantized";
  if (!packed_first) groups = json{{"group_9", groups["group_0"]}};
  groups["group_1"] = by_channels.config["config_groups"]["group_0"];
  groups["group_1"]["format"] = "float-quantized";
  groups["group_2"] = {{"targets", {"Attention"}}, {"weights", nullptr}};
  config["quantization_config"]["format"] = "mixed-precision";
  write_file(input / "model/config.json", config.dump());
  check_comes_back(input, with_mlps_of(input.tensors, packed.tensors));
}

TEST_CASE("ModelOpt's mixed precision has linears in FP8 and in NVFP4, whichever keys say so") {
  const Input input = quantized(method_of("ModelOpt FP8")), packed = quantized(method_of("ModelOpt NVFP4"));
  json quantization{{"quant_algo", "MIXED_PRECISION"}};
  SECTION("the method by name, the linears by quantized_layers") {
    quantization["quantized_layers"] = {{"model.layers.0.mlp.up_proj", {{"quant_algo", "NVFP4"}}}};
  }
  SECTION("the method by the producer, the linears by config_groups") {
    quantization["quant_method"] = nullptr;
    quantization["producer"] = {{"name", "modelopt"}, {"version", "0.31"}};
    quantization["config_groups"] = {{"group_0", {{"weights", {{"num_bits", 8}, {"type", "float"}}}}},
                                     {"group_1", {{"weights", {{"num_bits", 4}, {"group_size", 16}}}}}};
  }
  json config = json::parse(read_file(input / "model/config.json"));
  config["quantization_config"].merge_patch(quantization);
  write_file(input / "model/config.json", config.dump());
  check_comes_back(input, with_mlps_of(input.tensors, packed.tensors));
}

TEST_CASE("AutoRound's packings are those of GPTQ and AWQ") {
  for (const auto& [name, packing] :
       {std::pair("GPTQ", "auto_round:auto_gptq"), std::pair("AWQ", "auto_round:auto_awq")}) {
    CAPTURE(name);
    Method method = method_of(name);
    method.config = {{"quant_method", "auto-round"}, {"bits", 4}, {"group_size", 16}, {"packing_format", packing}};
    const Input input = quantized(method, {.layout = "ranks", .tp = 2});
    CHECK((input.whole() == input.tensors));
  }
}

/// Two layers of phi3, whose projections are packed, in FP8 with blocks of 16.
void write_packed(std::uint64_t intermediate, const fs::path& directory) {
  Drawn drawn;
  const auto add_linear = [&](const std::string& module, std::uint64_t out, std::uint64_t in) {
    drawn.add(module + ".weight", DType::kF8E4M3, {out, in});
    drawn.add(module + ".weight_scale_inv", DType::kF32, {(out + 15) / 16, (in + 15) / 16});
  };
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    add_linear(layer + "self_attn.qkv_proj", 3 * kHidden, kHidden);
    add_linear(layer + "self_attn.o_proj", kHidden, kHidden);
    add_linear(layer + "mlp.gate_up_proj", 2 * intermediate, kHidden);
    add_linear(layer + "mlp.down_proj", kHidden, intermediate);
  }
  drawn.add_unquantized();
  drawn.config = config_of("phi3", method_of("fp8 blocks").config);
  drawn.config["intermediate_size"] = intermediate;
  drawn.write(directory);
}

TEST_CASE("Packed linears are refused where padding would part them from others or their scales") {
  const TempDir temp;
  for (const auto& [intermediate, tp] : {std::pair(48u, 2u), {72u, 2u}, {136u, 4u}}) {
    CAPTURE(intermediate, tp);
    write_packed(intermediate, temp / "model");
    const RequestFields padded{.layout = "presharded", .tp = tp, .options = {"pad"}};
    check_refused([&] { plan_shard(shard_request(temp / "model", temp / "out", padded)); },
                  {.kind = ErrorKind::kUsage, .says = "gate_up_proj"});
  }
}

TEST_CASE("Stacked experts are quantised in blocks of their own, whose absence is noticed") {
  const std::uint64_t experts = 2, size = 48;  // 3 blocks of 16
  Drawn drawn;
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    const std::string attention = layer + "self_attn.", mlp = layer + "mlp.";
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"})
      drawn.add(attention + name + ".weight", DType::kBF16, {kHidden, kHidden});
    for (const char* name : {"q_norm", "k_norm"}) drawn.add(attention + name + ".weight", DType::kBF16, {kHeadDim});
    drawn.add(mlp + "experts.gate_up_proj", DType::kF8E4M3, {experts, kHidden, 2 * size});
    drawn.add(mlp + "experts.gate_up_proj_scale_inv", DType::kF32, {experts, kHidden / 16, 2 * size / 16});
    drawn.add(mlp + "experts.down_proj", DType::kF8E4M3, {experts, size, kHidden});
    drawn.add(mlp + "experts.down_proj_scale_inv", DType::kF32, {experts, size / 16, kHidden / 16});
    drawn.add(mlp + "gate.weight", DType::kBF16, {experts, kHidden});
  }
  drawn.add_unquantized();
  drawn.config = config_of("qwen3_vl_moe_text", method_of("fp8 blocks").config);
  drawn.config["moe_intermediate_size"] = size;
  drawn.config["head_dim"] = kHeadDim;
  drawn.config["num_experts"] = experts;
  const TempDir temp;
  drawn.write(temp / "model");
  const auto sharded = [&](std::uint32_t tp, std::vector<std::string> options) {
    fs::remove_all(temp / "out");
    shard(temp / "model", temp / "out", {.layout = "presharded", .tp = tp, .options = std::move(options)});
    return consolidated(temp / "out", temp / "whole");
  };
  CHECK((sharded(1, {}) == drawn.tensors));
  // 3 blocks over 2 ranks: neither without padding nor with it, as gate and up are packed.
  check_refused([&] { sharded(2, {}); }, {.kind = ErrorKind::kUsage});
  check_refused([&] { sharded(2, {"pad"}); }, {.kind = ErrorKind::kUsage});
  drawn.tensors.erase("model.layers.1.mlp.experts.down_proj_scale_inv");
  drawn.write(temp / "model");
  check_refused([&] { sharded(1, {}); }, {.says = "model.layers.1.mlp.experts.down_proj_scale_inv"});
}

TEST_CASE("A layout without a place for scales refuses quantised models before it proposes a degree") {
  const Input input = quantized(method_of("fp8 blocks"));
  for (const std::uint32_t tp : {1, 16}) {
    const Error error =
        check_refused([&] { shard(input / "model", input / "out", {.layout = "nxdi", .tp = tp}); },
                      {.kind = ErrorKind::kUnsupported, .says = "has no place for the scales of linears"});
    CHECK_THAT(error.hint(), !Says("TP degrees"));
  }
  check_refused([&] { shard(input / "model", input / "out", {.layout = "vllm", .tp = 1}); },
                {.kind = ErrorKind::kUnsupported, .says = "quantised (fp8)", .hint = "set `dtype` to bfloat16"});
}

TEST_CASE("NxD Inference's scale next to a weight that is not quantised is refused") {
  const fs::path golden = testdata("golden/nxdi_compiled/quant-int8-per_channel-llama-tp2");
  const TempDir temp;
  TensorMap tensors = read_model(golden / "quantized");
  Random random(1);
  tensors.at("layers.0.mlp.up_proj.weight") = random_tensor(random, DType::kF32, {24, 40});
  fs::create_directories(temp / "model");
  write_safetensors(temp / "model/model.safetensors", tensors);
  fs::copy_file(golden / "original/config.json", temp / "model/config.json");
  check_refused([&] { shard(temp / "model", temp / "out", {.layout = "nxdi", .tp = 2}); },
                {.kind = ErrorKind::kBadInput, .tensor = "model.layers.0.mlp.up_proj.weight", .says = "has a scale"});
}

/// The values of the weights that have scales, which belong to blocks of 16 x 16 or to the whole weight.
TensorMap dequantized(const TensorMap& quantized) {
  TensorMap plain;
  for (const auto& [name, tensor] : quantized) {
    if (tensor.dtype != DType::kF8E4M3) continue;
    const bool is_inverse = quantized.count(name + "_scale_inv") > 0;
    const TensorData& scales = quantized.at(name + (is_inverse ? "_scale_inv" : "_scale"));
    const std::uint64_t columns = tensor.shape[1], blocks = (columns + 15) / 16;
    std::vector<float> values;
    for (std::uint64_t i = 0; i < tensor.bytes.size(); ++i) {
      const std::uint64_t block = scales.shape.empty() ? 0 : i / columns / 16 * blocks + i % columns / 16;
      float scale = 0;
      std::memcpy(&scale, scales.bytes.data() + block * sizeof(scale), sizeof(scale));
      const double code = small_float_value(tensor.dtype, static_cast<std::uint8_t>(tensor.bytes[i]));
      values.push_back(static_cast<float>(code) * scale);
    }
    plain[name] = floats(tensor.shape, values);
  }
  return plain;
}

TEST_CASE("A dtype dequantises fp8, also for ranks that would part its blocks") {
  const std::string name = GENERATE("fp8 blocks", "fp8 of a tensor", "AutoFP8");
  CAPTURE(name);
  Method method = method_of(name);
  method.parts[1].dtype = DType::kF32;
  Input input = quantized(method, {}, 136);
  input.tensors["model.layers.0.self_attn.k_scale"] = floats({1}, {2});
  for (auto& [tensor_name, tensor] : input.tensors) {
    if (tensor.dtype == DType::kF8E4M3)  // no NaN, which has many bit patterns
      std::replace_if(
          tensor.bytes.begin(), tensor.bytes.end(), [](char byte) { return (byte & 0x7F) == 0x7F; }, '\1');
    if (tensor.dtype != DType::kF32) continue;
    std::vector<float> scales(tensor.bytes.size() / sizeof(float));
    for (float& scale : scales) scale = static_cast<float>(1 + input.random() % 1000) / 7;
    tensor = floats(tensor.shape, scales);
  }
  write_safetensors(input / "model/model.safetensors", input.tensors);
  const TensorMap plain = dequantized(input.tensors);
  const auto check = [&](TensorMap result) {
    CHECK(result.size() == plain.size() + 7);  // with norms, embedding and head
    std::erase_if(result, [&](const auto& item) { return plain.count(item.first) == 0; });
    CHECK((result == plain));
  };
  check(converted(input / "model", input / "plain", {.dtype = DType::kF32}));
  CHECK_FALSE(json::parse(read_file(input / "plain/config.json")).contains("quantization_config"));
  shard(input / "model", input / "out", {.layout = "nxd", .tp = 4, .dtype = DType::kF32});
  check(consolidated(input / "out", input / "whole"));
}

TEST_CASE("A dtype refuses scales of weights that it does not find") {
  const Input input = quantized(method_of("fp8 blocks"));
  const std::string module = "model.layers.1.mlp.down_proj.";
  Request request = convert_request(input / "model", input / "plain");
  request.dtype = DType::kBF16;
  request.names.drop.emplace_back("drop", module + "weight$");
  check_refused(
      [&] { plan_convert(request); },
      {.kind = ErrorKind::kUnsupported, .tensor = module + "weight_scale_inv", .says = "`dtype` does not dequantise"});
  request.names.drop.clear();
  request.names.renames.push_back(parse_rename("rename", module + "weight_scale_inv=scales"));
  check_refused([&] { plan_convert(request); },
                {.kind = ErrorKind::kUnsupported, .tensor = module + "weight", .says = "is quantised"});
}

/// What bitsandbytes stores, in 4 bits or in 8.
TensorMap write_bitsandbytes(bool four, const fs::path& directory) {
  Method method = method_of("fp8 blocks");
  method.config = {{"quant_method", "bitsandbytes"}, {"load_in_4bit", four}, {"load_in_8bit", !four}};
  method.parts = {{"weight", DType::kU8, {{'o', 1}, {'i', 1}}}};
  TensorMap tensors = write_quantized(method, directory);
  Random random(1);
  for (const Linear& linear : linears(128))
    if (four) {
      tensors[linear.module + ".weight"] = random_tensor(random, DType::kU8, {linear.outputs * linear.inputs / 2, 1});
      tensors[linear.module + ".weight.absmax"] = random_tensor(random, DType::kF32, {7});
    } else {
      tensors[linear.module + ".SCB"] = random_tensor(random, DType::kF32, {linear.outputs});
    }
  write_safetensors(directory / "model.safetensors", tensors);
  return tensors;
}

TEST_CASE("Scales of bitsandbytes stay in float32 in a conversion, as nothing else is read") {
  const bool four = GENERATE(true, false);
  const Input input({}, [&](const fs::path& directory) { return write_bitsandbytes(four, directory); });
  for (const auto& [name, tensor] : converted(input / "model", input / "cast", {.dtype = DType::kF16})) {
    CAPTURE(name);
    const TensorData& original = input.tensors.at(name);
    if (original.dtype == DType::kBF16)
      CHECK(tensor.dtype == DType::kF16);
    else
      CHECK((tensor == original));
  }
}

TEST_CASE("Configurations that are not supported, or make no sense, are refused with what they say") {
  const TempDir temp;
  json two_ways = method_of("W4A16").config;
  two_ways["config_groups"]["group_1"] = two_ways["config_groups"]["group_0"];
  two_ways["config_groups"]["group_1"]["weights"]["num_bits"] = 8;
  const auto with = [](const json& config) {
    return [config](const fs::path& directory) {
      Method method = method_of("W4A16");
      method.config = config;
      write_quantized(method, directory);
    };
  };
  const auto mlx = [](const char* key) {
    return [key](const fs::path& directory) {
      Method method{"mlx",
                    {{"bits", 4}, {"group_size", 64}},
                    {{"weight", DType::kU32, {{'o', 1}, {'i', 8}}},
                     {"scales", DType::kBF16, {{'o', 1}, {'i', 64}}},
                     {"biases", DType::kBF16, {{'o', 1}, {'i', 64}}}}};
      write_quantized(method, directory);
      json keys{{"quantization_config", nullptr}};
      keys[key] = method.config;
      merge_json(directory / "config.json", keys);
    };
  };
  check_refusals<std::function<void(const fs::path&)>>(
      [&](const auto& write) {
        write(temp / "model");
        plan_shard(shard_request(temp / "model", temp / "out", 2));
      },
      {},
      {{"mlx-lm, in a quantization_config without a method",
        mlx("quantization_config"),
        {.kind = ErrorKind::kUnsupported, .says = "quantised by mlx", .hint = "before it was quantised"}},
       {"mlx-lm, as \"quantization\"",
        mlx("quantization"),
        {.kind = ErrorKind::kUnsupported, .says = "quantised by mlx", .hint = "before it was quantised"}},
       {"bitsandbytes in 4 bits",
        [](const fs::path& directory) { write_bitsandbytes(true, directory); },
        {.kind = ErrorKind::kUnsupported, .says = "cannot be partitioned: its weights are stored as one row"}},
       {"bitsandbytes in 8 bits",
        [](const fs::path& directory) { write_bitsandbytes(false, directory); },
        {.kind = ErrorKind::kUnsupported, .says = "cannot be partitioned: its outliers"}},
       {"groups that quantise in different ways",
        with(two_ways),
        {.kind = ErrorKind::kUnsupported, .says = "in different ways under the same names"}},
       {"an algorithm of ModelOpt",
        with({{"quant_method", "modelopt"}, {"quant_algo", "W4A8_AWQ"}}),
        {.kind = ErrorKind::kUnsupported, .says = "\"quant_algo\" is \"W4A8_AWQ\""}},
       {"a version of AWQ",
        with({{"quant_method", "awq"}, {"bits", 4}, {"group_size", 16}, {"version", "gemv"}}),
        {.kind = ErrorKind::kUnsupported, .says = "\"version\" is \"gemv\""}},
       {"mxfp4",
        with({{"quant_method", "mxfp4"}}),
        {.kind = ErrorKind::kUnsupported, .says = "known for gpt_oss alone"}},
       {"3 bits",
        with({{"quant_method", "gptq"}, {"bits", 3}}),
        {.kind = ErrorKind::kUnsupported,
         .says = "\"bits\" is 3; supported are 2, 4, 8",
         .hint = "before it was quantised"}},
       {"bits as a text",
        with({{"quant_method", "gptq"}, {"bits", "4"}}),
        {.says = "\"bits\" is \"4\", expected one of 2, 4, 8"}},
       {"no method", with({{"bits", 4}}), {.says = "\"quantization_config\" has no \"quant_method\""}},
       {"a number for a method", with({{"quant_method", 4}}), {.says = "\"quant_method\" is 4, expected a string"}},
       {"a text", with("gptq"), {.says = "\"quantization_config\" is \"gptq\", expected an object"}},
       {"a list", with(json::array()), {.says = "\"quantization_config\" is [], expected an object"}}});
}

TEST_CASE("Experts in MXFP4 are recognised without a quantization_config, and all layouts read them back") {
  const TempDir temp;
  json config = architecture("gpt_oss").facts.at("config");
  config["quantization_config"] = {{"quant_method", "mxfp4"}};
  Random random(61);
  TensorMap tensors = write_configured(config, temp / "model", random);
  for (auto& [name, tensor] : tensors)
    if (name.ends_with("_blocks") || name.ends_with("_scales"))
      tensor = random_tensor(random, DType::kU8, tensor.shape);
  REQUIRE(tensors.count("model.layers.0.mlp.experts.down_proj_blocks") == 1);
  write_safetensors(temp / "model/model.safetensors", tensors);
  config.erase("quantization_config");
  write_file(temp / "model/config.json", config.dump());
  const auto job = plan_convert(convert_request(temp / "model", temp / "out"));
  execute(*job, unsynced());
  CHECK((read_whole(temp / "out") == tensors));
  CHECK(json::parse(read_file(temp / "out/config.json"))["quantization_config"]["quant_method"] == "mxfp4");
  for (const std::string layout : {"vllm", "ranks"}) {
    INFO(layout);
    fs::remove_all(temp / "ranks");
    try {
      shard(temp / "model", temp / "ranks", {.layout = layout, .tp = 2});
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kUnsupported);
      continue;
    }
    CHECK((consolidated(temp / "ranks", temp / "whole") == tensors));
  }
}

}  // namespace
}  // namespace reshard::test
