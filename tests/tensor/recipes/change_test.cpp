#include "reshard/tensor/recipes/change.h"

#include <memory>
#include <vector>

#include "support/catch.h"
#include "support/errors.h"

namespace reshard::test {
namespace {

std::vector<float> changed(const ValueChange& change, const std::vector<float>& values, const Box& output) {
  const auto recipe = change_recipe(change, DType::kF32);
  const Box box = recipe->input_box(0, output);
  const std::vector<float> part(values.begin() + static_cast<std::ptrdiff_t>(box.begin[0]),
                                values.begin() + static_cast<std::ptrdiff_t>(box.begin[0] + box.size[0]));
  const std::vector<InputBox> inputs{{box, DType::kF32, std::as_bytes(std::span(part))}};
  std::vector<float> result(volume(output));
  Findings findings;
  recipe->apply(inputs, output, std::as_writable_bytes(std::span(result)), findings);
  return result;
}

TEST_CASE("A changed tensor has every second element, plus a number, divided") {
  const std::vector<float> values{1, 2, 3, 4, 5, 6, 7, 8};
  CHECK(changed({0, 2}, values, {{0}, {4}}) == std::vector<float>{1, 3, 5, 7});
  CHECK(changed({1, 2, 1}, values, {{1}, {2}}) == std::vector<float>{5, 7});
  CHECK(changed({0, 1, 0, 4}, values, {{6}, {2}}) == std::vector<float>{1.75, 2});
  CHECK(ValueChange{1, 2, 1}.name_of("bias") == "bias[1::2] + 1");
  CHECK(ValueChange{0, 1, 0, 4}.name_of("bias") == "bias / 4");
}

TEST_CASE("Sums are rounded to the dtype that is written, after the cast to it") {
  const std::vector<float> values{0.0123F};
  const Box box = whole({1});
  const std::vector<InputBox> inputs{{box, DType::kF32, std::as_bytes(std::span(values))}};
  std::uint16_t sum = 0;
  Findings findings;
  change_recipe({0, 1, 1}, DType::kBF16)->apply(inputs, box, std::as_writable_bytes(std::span(&sum, 1)), findings);
  CHECK(sum == 0x3F82);  // 1.015625
}

TEST_CASE("Any box of a parameter is restored from the tensors that follow from it") {
  const std::vector<float> even{0, 2, 4, 6}, odd{2, 4, 6, 8};  // of 0, 1, ..., 7, with 1 added to the odd ones
  const auto recipe = restore_recipe({{0, 2}, {1, 2, 1}});
  for (std::uint64_t begin = 0; begin < 8; ++begin)
    for (std::uint64_t end = begin + 1; end <= 8; ++end) {
      const Box output{{begin}, {end - begin}};
      const Box box = recipe->input_box(0, output);
      std::vector<InputBox> inputs;
      for (const auto* of : {&even, &odd})
        inputs.push_back({box, DType::kF32, std::as_bytes(std::span(*of).subspan(box.begin[0], box.size[0]))});
      std::vector<float> result(end - begin);
      Findings findings;
      recipe->apply(inputs, output, std::as_writable_bytes(std::span(result)), findings);
      for (std::uint64_t i = begin; i < end; ++i) CHECK(result[i - begin] == static_cast<float>(i));
    }
}

TEST_CASE("An arranged tensor has all elements, with a number added to every second one, and zeros for padding") {
  // (row half) -> (half row), padded from 6 to 8 elements
  const auto arrangement = std::make_shared<const Arrangement>(Dims{4, 2}, Arrangement::DimsOfAxes{{0, 1}},
                                                               Arrangement::DimsOfAxes{{1, 0}}, Dims{6}, 1);
  const ValueChange change{1, 2, 1, 1, arrangement};
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  CHECK(changed(change, values, whole({8})) == std::vector<float>{1, 3, 5, 0, 3, 5, 7, 0});
  CHECK(changed(change, values, {{5}, {1}}) == std::vector<float>{5});
  const Operand parameter{"bias", DType::kF32, {6}}, arranged{"arranged", DType::kF32, {8}};
  const auto recipe = restore_recipe({change});
  CHECK_NOTHROW(recipe->validate(std::span(&arranged, 1), parameter));
  const std::vector<float> stored{1, 3, 5, 0, 3, 5, 7, 0};
  for (std::uint64_t begin = 0; begin < 6; ++begin)
    for (std::uint64_t end = begin + 1; end <= 6; ++end) {
      const Box output{{begin}, {end - begin}};
      const Box box = recipe->input_box(0, output);
      const std::vector<InputBox> inputs{
          {box, DType::kF32, std::as_bytes(std::span(stored).subspan(box.begin[0], box.size[0]))}};
      std::vector<float> result(end - begin);
      Findings findings;
      recipe->apply(inputs, output, std::as_writable_bytes(std::span(result)), findings);
      for (std::uint64_t i = begin; i < end; ++i) CHECK(result[i - begin] == static_cast<float>(i + 1));
    }
}

TEST_CASE("Pairs of bytes become words, and other dtypes are refused") {
  const auto arrangement = std::make_shared<const Arrangement>(Dims{2}, Arrangement::DimsOfAxes{{0}},
                                                               Arrangement::DimsOfAxes{{0}}, Dims{4}, 2);
  const ValueChange change{0, 1, 0, 1, arrangement};
  CHECK(change.dtype_of(DType::kU8) == DType::kU16);
  const Operand bytes{"blocks", DType::kU8, {4}}, halves{"blocks", DType::kBF16, {4}};
  const Operand words{"words", DType::kU16, {2}}, mixed{"words", DType::kBF16, {2}};
  CHECK_NOTHROW(change_recipe(change, DType::kU16)->validate(std::span(&bytes, 1), words));
  const auto written = error_of([&] { change_recipe(change, DType::kBF16)->validate(std::span(&halves, 1), mixed); });
  CHECK(written.kind() == ErrorKind::kUnsupported);
  const auto read = error_of([&] { restore_recipe({change})->validate(std::span(&mixed, 1), bytes); });
  CHECK(read.kind() == ErrorKind::kBadInput);
}

TEST_CASE("A parameter is restored only if all its elements are there, and computed only in floats") {
  const Operand half{"half", DType::kBF16, {4}}, all{"all", DType::kBF16, {8}}, bytes{"all", DType::kU8, {8}};
  const auto restored = error_of([&] { restore_recipe({{0, 2}})->validate(std::span(&half, 1), all); });
  CHECK(restored.message() == "the files contain only some of its elements");
  const Operand sum{"sum", DType::kU8, {4}};
  const auto computed = error_of([&] { change_recipe({1, 2, 1}, DType::kU8)->validate(std::span(&bytes, 1), sum); });
  CHECK(computed.kind() == ErrorKind::kUnsupported);
}

}  // namespace
}  // namespace reshard::test
