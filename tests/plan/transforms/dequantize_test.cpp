#include "reshard/plan/transforms/dequantize.h"

#include <catch2/catch.hpp>

#include "reshard/tensor/recipes/mxfp4.h"

namespace reshard::test {

TEST_CASE("A dtype replaces MXFP4 blocks and their scales by values, and nothing else") {
  Draft draft;
  for (const LogicalTensor& tensor : std::vector<LogicalTensor>{{"norm", DType::kBF16, {64}, {}},
                                                                {"w_blocks", DType::kU8, {2, 3, 2, 16}, {}},
                                                                {"w_scales", DType::kU8, {2, 3, 2}, {}},
                                                                {"x_blocks", DType::kU8, {2, 3, 2, 16}, {}},
                                                                {"y_scales", DType::kU8, {2, 3}, {}}}) {
    draft.source.map.add_logical(tensor, {});
    draft.wanted.push_back(tensor);
  }
  Request request;
  dequantize(draft, request);
  CHECK(draft.wanted.size() == 5);
  request.dtype = DType::kF32;
  dequantize(draft, request);
  std::vector<std::string> names;
  for (const LogicalTensor& tensor : draft.wanted) names.push_back(tensor.name);
  CHECK(names == std::vector<std::string>{"norm", "w", "x_blocks", "y_scales"});
  CHECK(draft.wanted[1].dtype == DType::kBF16);
  CHECK(draft.wanted[1].shape == Dims{2, 64, 3});
  CHECK(draft.transforms == std::vector<Applied>{{Applied::Transform::kDequantize, 1}});
  const LogicalTensor& values = draft.source.map.logical[*draft.source.map.find_logical("w")];
  CHECK((values.computed->inputs == std::vector<std::string>{"w_blocks", "w_scales"}));
}

}  // namespace reshard::test
