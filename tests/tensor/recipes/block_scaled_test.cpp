#include "reshard/tensor/recipes/block_scaled.h"

#include <algorithm>
#include <vector>

#include "reshard/tensor/cast/numeric.h"
#include "support/box_elements.h"
#include "support/catch.h"
#include "support/errors.h"

namespace reshard::test {
namespace {

constexpr std::uint64_t kMatrices = 2, kRows = 11, kColumns = 2100, kBlockRows = 4, kBlockColumns = 300;
constexpr std::uint64_t kScaleRows = 3, kScaleColumns = 7;

TEST_CASE("Weights of 8 bits times the scales of their blocks are the values of each box") {
  const Dims shape{kMatrices, kRows, kColumns}, blocks{kMatrices, kScaleRows, kScaleColumns};
  std::vector<std::uint8_t> weight(kMatrices * kRows * kColumns);
  std::vector<float> scales(kMatrices * kScaleRows * kScaleColumns);
  std::uint32_t state = 1;
  const auto next = [&] { return (state = state * 1664525U + 1013904223U) >> 9; };
  // No NaN, which equals nothing.
  std::generate(weight.begin(), weight.end(),
                [&] { return static_cast<std::uint8_t>(next() % 127 + next() % 2 * 128); });
  std::generate(scales.begin(), scales.end(), [&] { return static_cast<float>(next()) * 1e-5F; });
  const auto recipe = block_scaled_recipe(kBlockRows, kBlockColumns);
  const std::vector<Operand> operands{{"w", DType::kF8E4M3, shape}, {"s", DType::kF32, blocks}};
  recipe->validate(operands, {"w", DType::kF32, shape});
  for (const Box& box : {whole(shape), Box{{1, 3, 299}, {1, 2, 1500}}, Box{{0, 10, 2099}, {2, 1, 1}}}) {
    const Box of_scales = recipe->input_box(1, box);
    const auto codes = elements_of(weight, shape, recipe->input_box(0, box));
    const auto factors = elements_of(scales, blocks, of_scales);
    const std::vector<InputBox> inputs{{box, DType::kF8E4M3, std::as_bytes(std::span(codes))},
                                       {of_scales, DType::kF32, std::as_bytes(std::span(factors))}};
    std::vector<float> result(volume(box));
    Findings findings;
    recipe->apply(inputs, box, std::as_writable_bytes(std::span(result)), findings);
    std::size_t i = 0;
    for (std::uint64_t m = box.begin[0]; m < box.begin[0] + box.size[0]; ++m)
      for (std::uint64_t r = box.begin[1]; r < box.begin[1] + box.size[1]; ++r)
        for (std::uint64_t c = box.begin[2]; c < box.begin[2] + box.size[2]; ++c, ++i) {
          const float scale = scales[(m * kScaleRows + r / kBlockRows) * kScaleColumns + c / kBlockColumns];
          const std::uint8_t code = weight[(m * kRows + r) * kColumns + c];
          if (result[i] != static_cast<float>(small_float_value(DType::kF8E4M3, code)) * scale)
            FAIL("matrix " << m << ", row " << r << ", column " << c);
        }
  }
}

TEST_CASE("A single scale belongs to the whole weight") {
  const auto recipe = block_scaled_recipe(0, 0);
  const Box box{{1, 0}, {1, 2}}, one{{}, {}};
  const std::vector<std::uint8_t> codes{0x38, 0xC0};  // 1 and -2
  const std::vector<std::uint16_t> scale{0x3FC0};     // 1.5
  const std::vector<InputBox> inputs{{box, DType::kF8E4M3, std::as_bytes(std::span(codes))},
                                     {one, DType::kBF16, std::as_bytes(std::span(scale))}};
  std::vector<float> result(2);
  Findings findings;
  recipe->apply(inputs, box, std::as_writable_bytes(std::span(result)), findings);
  CHECK(result == std::vector<float>{1.5F, -3});
  CHECK(recipe->access(1) == Recipe::Access::kWhole);
}

TEST_CASE("Scales that do not fit their weights are refused") {
  const Operand output{"w", DType::kF32, {5, 8}};
  const auto refused = [&](DType dtype, Dims scales, std::uint64_t rows, const char* tensor, const char* message) {
    const std::vector<Operand> inputs{{"w", dtype, {5, 8}}, {"s", DType::kF32, std::move(scales)}};
    const Error error = error_of([&] { block_scaled_recipe(rows, rows)->validate(inputs, output); });
    CHECK(error.kind() == ErrorKind::kBadInput);
    CHECK(error.tensor() == tensor);
    CHECK(error.message() == message);
  };
  refused(DType::kF8E4M3, {1, 2}, 4, "s", "is F32 [1, 2], expected one scale per block of 4 x 4 of w: [2, 2]");
  refused(DType::kF8E4M3, {2}, 0, "s", "is F32 [2], expected one scale for the whole weight");
  refused(DType::kBF16, {2, 2}, 4, "w", "is BF16 [5, 8], expected floats of 8 bits, as s scales them");
}

}  // namespace
}  // namespace reshard::test
