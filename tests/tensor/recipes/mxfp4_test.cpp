#include "reshard/tensor/recipes/mxfp4.h"

#include <bit>
#include <cmath>
#include <vector>

#include "support/box_elements.h"
#include "support/catch.h"
#include "support/errors.h"

namespace reshard::test {
namespace {

constexpr std::uint64_t kExperts = 2, kOuts = 35, kGroups = 3;

struct Mxfp4Weights {
  std::vector<std::byte> blocks, scales;

  std::byte block(const Dims& at) const {
    return blocks[((at[0] * kOuts + at[1]) * kGroups + at[2]) * kMxfp4Bytes + at[3]];
  }
  std::byte scale(const Dims& at) const { return scales[(at[0] * kOuts + at[1]) * kGroups + at[2]]; }
  float value(std::uint64_t expert, std::uint64_t in, std::uint64_t out) const {
    constexpr float kValues[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    const std::uint64_t group = in / kMxfp4Values, place = in % kMxfp4Values;
    const auto byte = static_cast<unsigned>(block({expert, out, group, place / 2}));
    const unsigned code = place % 2 == 0 ? byte & 0xF : byte >> 4;
    const float value = std::ldexp(kValues[code & 7], static_cast<int>(scale({expert, out, group})) - 127);
    return (code & 8) != 0 ? -value : value;
  }
};

Mxfp4Weights some_weights() {
  Mxfp4Weights weights;
  std::uint32_t state = 1;
  const auto next = [&] { return state = state * 1664525U + 1013904223U; };
  weights.blocks.resize(kExperts * kOuts * kGroups * kMxfp4Bytes);
  weights.scales.resize(kExperts * kOuts * kGroups);
  for (std::byte& byte : weights.blocks) byte = static_cast<std::byte>(next() >> 24);
  for (std::byte& byte : weights.scales) byte = static_cast<std::byte>(100 + (next() >> 24) % 50);
  return weights;
}

TEST_CASE("MXFP4 blocks are the values of each box, transposed") {
  const Mxfp4Weights weights = some_weights();
  const Dims blocks{kExperts, kOuts, kGroups, kMxfp4Bytes}, scales{kExperts, kOuts, kGroups};
  CHECK(mxfp4_values_shape(blocks) == Dims{kExperts, kGroups * kMxfp4Values, kOuts});
  const auto recipe = mxfp4_recipe();
  const Box boxes[] = {
      whole({kExperts, kGroups * kMxfp4Values, kOuts}), {{1, 31, 3}, {1, 34, 32}}, {{0, 40, 34}, {1, 1, 1}}};
  for (const Box& box : boxes) {
    const Box of_blocks = recipe->input_box(0, box), of_scales = recipe->input_box(1, box);
    const auto block_bytes = elements_of(weights.blocks, blocks, of_blocks),
               scale_bytes = elements_of(weights.scales, scales, of_scales);
    const std::vector<InputBox> inputs{{of_blocks, DType::kU8, block_bytes}, {of_scales, DType::kU8, scale_bytes}};
    std::vector<std::uint16_t> result(volume(box));
    Findings findings;
    recipe->apply(inputs, box, std::as_writable_bytes(std::span(result)), findings);
    std::size_t i = 0;
    for (std::uint64_t e = box.begin[0]; e < box.begin[0] + box.size[0]; ++e)
      for (std::uint64_t in = box.begin[1]; in < box.begin[1] + box.size[1]; ++in)
        for (std::uint64_t out = box.begin[2]; out < box.begin[2] + box.size[2]; ++out)
          if (std::bit_cast<float>(static_cast<std::uint32_t>(result[i++]) << 16) != weights.value(e, in, out))
            FAIL("expert " << e << ", in " << in << ", out " << out);
  }
}

TEST_CASE("MXFP4 blocks need scales of their shape") {
  const Operand output{"w", DType::kBF16, {2, 64, 3}};
  const std::vector<Operand> inputs{{"w_blocks", DType::kU8, {2, 3, 2, 16}}, {"w_scales", DType::kU8, {2, 3, 1}}};
  const Error error = error_of([&] { mxfp4_recipe()->validate(inputs, output); });
  CHECK(error.tensor() == "w_scales");
  CHECK(error.message() == "is U8 [2, 3, 1], which does not fit MXFP4 scales for w [2, 64, 3]");
}

}  // namespace
}  // namespace reshard::test
