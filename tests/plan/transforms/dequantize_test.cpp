#include "reshard/plan/transforms/dequantize.h"

#include <nlohmann/json.hpp>

#include "reshard/tensor/recipes/mxfp4.h"
#include "support/catch.h"
#include "support/refusals.h"

namespace reshard::test {

TEST_CASE("A dtype replaces MXFP4 blocks and their scales by values, and nothing else") {
  Draft draft;
  for (const LogicalTensor& tensor : std::vector<LogicalTensor>{{"norm", DType::kBF16, {64}, {}},
                                                                {"w_blocks", DType::kU8, {2, 3, 2, 16}, {}},
                                                                {"w_scales", DType::kU8, {2, 3, 2}, {}},
                                                                {"x", DType::kU8, {2, 3, 2, 16}, {}}}) {
    draft.source.map.add_logical(tensor, {});
    draft.wanted.push_back(tensor);
  }
  Request request;
  dequantize(draft, request);
  CHECK(draft.wanted.size() == 4);
  request.dtype = DType::kF32;
  dequantize(draft, request);
  std::vector<std::string> names;
  for (const LogicalTensor& tensor : draft.wanted) names.push_back(tensor.name);
  CHECK(names == std::vector<std::string>{"norm", "w", "x"});
  CHECK(draft.wanted[1].dtype == DType::kBF16);
  CHECK(draft.wanted[1].shape == Dims{2, 64, 3});
  CHECK(draft.transforms == std::vector<Applied>{{Applied::Transform::kDequantize, 1}});
  const LogicalTensor& values = draft.source.map.logical[*draft.source.map.find_logical("w")];
  CHECK((values.computed->inputs == std::vector<std::string>{"w_blocks", "w_scales"}));
}

TEST_CASE("A dtype refuses blocks and scales in MXFP4 that it does not find under the same name") {
  const auto refused = [](const std::vector<std::pair<const char*, const char*>>& names, const char* tensor) {
    CAPTURE(tensor);
    Draft draft;
    for (const auto& [old_name, name] : names) {
      const bool is_block = std::string(old_name).ends_with("_blocks");
      draft.old_names.push_back(old_name);
      draft.wanted.push_back({name, DType::kU8, is_block ? Dims{2, 3, 2, 16} : Dims{2, 3, 2}, {}});
      draft.source.map.add_logical(draft.wanted.back(), {});
    }
    Request request;
    request.dtype = DType::kBF16;
    check_refused([&] { dequantize(draft, request); }, {.kind = ErrorKind::kUnsupported, .tensor = tensor});
  };
  using Pairs = std::vector<std::pair<const char*, const char*>>;
  const Pairs whole = {{"w_blocks", "w_blocks"}, {"w_scales", "w_scales"}};
  const auto with = [&](Pairs more) {
    more.insert(more.begin(), whole.begin(), whole.end());
    return more;
  };
  refused(with({{"x_blocks", "x_blocks"}}), "x_blocks");
  refused(with({{"x_scales", "x_scales"}}), "x_scales");
  refused(with({{"x_blocks", "renamed"}, {"x_scales", "x_scales"}}), "renamed");
  refused({{"w_blocks", "renamed"}, {"w_scales", "w_scales"}}, "renamed");
}

TEST_CASE("A dtype replaces weights that a factor of their quantisation multiplies, under their names") {
  Draft draft;
  draft.source.language_model.config.json = std::make_shared<const Json>(
      Json::parse(R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [4, 8]}})"));
  for (const LogicalTensor& tensor : std::vector<LogicalTensor>{{"a.weight", DType::kF8E4M3, {6, 8}, {}},
                                                                {"a.weight_scale_inv", DType::kF32, {2, 1}, {}},
                                                                {"a.input_scale", DType::kF32, {1}, {}},
                                                                {"b.weight", DType::kBF16, {6, 8}, {}},
                                                                {"experts.up", DType::kF8E4M3, {3, 8, 8}, {}},
                                                                {"experts.up_scale_inv", DType::kF32, {3, 2, 1}, {}}}) {
    draft.source.map.add_logical(tensor, {});
    draft.wanted.push_back(tensor);
  }
  Request request;
  request.dtype = DType::kBF16;
  dequantize(draft, request);
  std::vector<std::string> names;
  for (const LogicalTensor& tensor : draft.wanted) names.push_back(tensor.name);
  CHECK(names == std::vector<std::string>{"a.weight", "b.weight", "experts.up"});
  CHECK(draft.wanted[0].dtype == DType::kF32);
  CHECK(draft.dropped == std::vector<std::string>{"a.input_scale"});
  CHECK(draft.transforms == std::vector<Applied>{{Applied::Transform::kDequantize, 2}});
  const SourceMap& source = draft.source.map;
  for (const auto& [name, scales] :
       {std::pair("a.weight", "a.weight_scale_inv"), {"experts.up", "experts.up_scale_inv"}}) {
    const auto& inputs = source.logical[source.find_logical(name).value()].computed->inputs;
    CHECK(inputs == std::vector<std::string>{std::string(name) + ".quantized", scales});
    CHECK(source.logical[source.find_logical(inputs.front()).value()].dtype == DType::kF8E4M3);
  }
}

}  // namespace reshard::test
