#include "reshard/specs/model/quantization.h"

#include "reshard/base/json.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

/// Reads a quantization_config with that method and these further keys.
std::optional<Quantization> read(const std::string& method, const std::string& more) {
  const std::string text = R"({"quantization_config": {"quant_method": ")" + method + "\"" + more + "}}";
  return Quantization::read({"m/config.json", std::make_shared<const Json>(Json::parse(text)), "llama"});
}

TEST_CASE("Values of a quantization_config that make no sense are refused with their key") {
  using Config = std::pair<std::string, std::string>;
  const auto read_config = [](const Config& config) { read(config.first, config.second); };
  check_each_refused<Config>(
      read_config, {.path = "m/config.json"},
      {{{"fp8", R"(, "weight_block_size": [])"}, "\"weight_block_size\" is [], expected two sizes"},
       {{"fp8", R"(, "weight_block_size": [128])"}, "expected two sizes"},
       {{"fp8", R"(, "weight_block_size": [128, 0])"}, "expected two sizes"},
       {{"fp8", R"(, "weight_block_size": 128)"}, "expected two sizes"},
       {{"gptq", R"(, "bits": "4")"}, "\"bits\" is \"4\", expected one of 2, 4, 8"},
       {{"gptq", R"(, "bits": -4)"}, "\"bits\" is -4, expected one of 2, 4, 8"},
       {{"gptq", R"(, "bits": 4, "group_size": 0)"}, "\"group_size\" is 0, expected a group of at least 1, or -1"},
       {{"gptq", R"(, "bits": 4, "group_size": -2)"}, "\"group_size\" is -2, expected a group"},
       {{"gptq", R"(, "bits": 4, "group_size": 1048577)"}, "\"group_size\" is 1048577, expected a group"},
       {{"gptq", R"(, "bits": 4, "desc_act": 1)"}, "\"desc_act\" is 1, expected true or false"},
       {{"awq", R"(, "group_size": 128)"}, "\"bits\" is missing"},
       {{"compressed-tensors", R"(, "config_groups": [])"}, "config_groups"}});
  check_refused([&] { read("gptq", R"(, "bits": 3)"); }, {.kind = ErrorKind::kUnsupported,
                                                          .path = "m/config.json",
                                                          .says = "\"bits\" is 3; supported are 2, 4, 8",
                                                          .hint = "before it was quantised"});
  for (const char* size : {"-1", "null", "1", "1048576"})
    CHECK(read("gptq", R"(, "bits": 4, "group_size": )" + std::string(size)));
}

TEST_CASE("A quantisation that no config.json declares is recognised by weights with their scales") {
  struct Tensor {
    const char* name;
    DType dtype;
    Dims shape;
  };
  const auto config_of = [](const std::vector<Tensor>& tensors) {
    QuantizationEvidence evidence;
    for (const auto& [name, dtype, shape] : tensors) evidence.add(name, dtype, shape);
    const auto config = evidence.config();
    return config == nullptr ? std::string()
                             : config->value("quantization_type", "") + ":" + config->value("quantization_dtype", "");
  };
  const Tensor int8{"up.weight", DType::kI8, {8, 4}}, fp8{"down.weight", DType::kF8E4M3, {4, 8}};
  CHECK(config_of({int8, {"up.scale", DType::kF32, {8, 1}}}) == "per_channel_symmetric:int8");
  CHECK(config_of({fp8, {"down.scale", DType::kF32, {4, 1}}}) == "per_channel_symmetric:f8e4m3");
  CHECK(config_of({int8, {"up.scale", DType::kF32, {1}}}) == "per_tensor_symmetric:int8");
  CHECK(config_of({int8, {"up.scale", DType::kF32, {}}}) == "per_tensor_symmetric:int8");
  CHECK(config_of({int8, {"up.scale", DType::kF32, {4, 2}}}).empty());
  CHECK(config_of({int8, {"down.scale", DType::kF32, {4, 1}}}).empty());
  CHECK(config_of({{"up.weight", DType::kBF16, {8, 4}}, {"up.scale", DType::kF32, {8, 1}}}).empty());
  CHECK(config_of({{"up.weight", DType::kU8, {8, 4}}, {"up.scale", DType::kF32, {8, 1}}}).empty());
  check_refused(
      [&] {
        config_of({int8, {"up.scale", DType::kF32, {8, 1}}, fp8, {"down.scale", DType::kF32, {4, 1}}});
      },
      {.kind = ErrorKind::kUnsupported, .tensor = "up.weight", .says = "another way", .hint = "same way"});
}

}  // namespace
}  // namespace reshard::test
