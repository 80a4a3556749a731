#include "reshard/tensor/recipes/scaled.h"

#include <cstdint>
#include <vector>

#include "support/catch.h"
#include "support/errors.h"

namespace reshard::test {
namespace {

std::vector<std::uint16_t> scaled_bf16(const std::vector<std::uint16_t>& values, double factor) {
  const Box box = whole({values.size()});
  const std::vector<InputBox> inputs{{box, DType::kBF16, std::as_bytes(std::span(values))}};
  std::vector<std::uint16_t> result(values.size());
  Findings findings;
  scaled_recipe(factor)->apply(inputs, box, std::as_writable_bytes(std::span(result)), findings);
  return result;
}

TEST_CASE("A product is computed in single precision and rounded once to nearest even") {
  // 1.0078125 and 1.0234375 times 1.5 are halfway between two numbers; 3 times 1/3 in single precision is 1.
  CHECK(scaled_bf16({0x3f81, 0x3f83, 0x8000, 0x7f80}, 1.5) ==
        std::vector<std::uint16_t>{0x3fc2, 0x3fc4, 0x8000, 0x7f80});
  CHECK(scaled_bf16({0x4040}, 1.0 / 3) == std::vector<std::uint16_t>{0x3f80});
  const std::vector<std::uint16_t> many(10000, 0x4000);
  CHECK(scaled_bf16(many, 0.5) == std::vector<std::uint16_t>(many.size(), 0x3f80));
}

TEST_CASE("Factors of columns are those of the box, and products are rounded once to the dtype") {
  const Box box{{4, 1}, {2, 2}}, columns = column_scaled_recipe()->input_box(1, box);
  CHECK(columns.begin == Dims{1});
  CHECK(columns.size == Dims{2});
  const std::vector<std::uint16_t> values{0x3f81, 0x4000, 0x3f83, 0x8000}, factors{0x3fc0, 0x4040};  // 1.5 and 3
  const std::vector<InputBox> inputs{{box, DType::kBF16, std::as_bytes(std::span(values))},
                                     {columns, DType::kBF16, std::as_bytes(std::span(factors))}};
  std::vector<std::uint16_t> result(4);
  Findings findings;
  column_scaled_recipe()->apply(inputs, box, std::as_writable_bytes(std::span(result)), findings);
  CHECK(result == std::vector<std::uint16_t>{0x3fc2, 0x40c0, 0x3fc4, 0x8000});
  const std::vector<Operand> operands{{"w", DType::kBF16, {4, 2}}, {"g", DType::kF32, {2}}};
  const Error error = error_of([&] { column_scaled_recipe()->validate(operands, operands.front()); });
  CHECK(error.kind() == ErrorKind::kUnsupported);
  CHECK(error.message() == "is BF16, and cannot be multiplied by g, which is F32");
}

TEST_CASE("Only floats are multiplied") {
  const Operand input{"a", DType::kI32, {2}};
  const std::vector<Operand> inputs{input};
  const Error error = error_of([&] { scaled_recipe(2)->validate(inputs, input); });
  CHECK(error.kind() == ErrorKind::kUnsupported);
  CHECK(error.tensor() == "a");
}

}  // namespace
}  // namespace reshard::test
