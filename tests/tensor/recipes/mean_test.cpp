#include "reshard/tensor/recipes/mean.h"

#include <bit>
#include <limits>
#include <vector>

#include "support/catch.h"
#include "support/errors.h"

namespace reshard::test {
namespace {

std::vector<float> mean_of(const std::vector<std::vector<float>>& terms, Findings& findings) {
  const Box box = whole({terms.front().size()});
  std::vector<InputBox> inputs;
  for (const auto& term : terms) inputs.push_back({box, DType::kF32, std::as_bytes(std::span(term))});
  std::vector<float> result(terms.front().size());
  mean_recipe()->apply(inputs, box, std::as_writable_bytes(std::span(result)), findings);
  return result;
}

TEST_CASE("Where all terms have the same bits so has their mean, and elsewhere it is inexact") {
  const float third = std::bit_cast<float>(0x3eaaaaacu);  // three of them do not add up to a multiple of three
  const float payload = std::bit_cast<float>(0x7fc00abcu);
  const float largest = std::numeric_limits<float>::max();
  const std::vector<float> equal{-0.0f, third, payload, largest, 1};
  Findings findings;
  const auto same = mean_of({equal, equal, equal}, findings);
  CHECK_FALSE(findings.inexact);
  std::vector<float> other = equal;
  other.back() = 4;
  const auto mixed = mean_of({equal, equal, other}, findings);
  CHECK(findings.inexact);
  for (std::size_t i = 0; i < equal.size(); ++i)
    CHECK(std::bit_cast<std::uint32_t>(same[i]) == std::bit_cast<std::uint32_t>(equal[i]));
  for (std::size_t i = 0; i + 1 < equal.size(); ++i)
    CHECK(std::bit_cast<std::uint32_t>(mixed[i]) == std::bit_cast<std::uint32_t>(equal[i]));
  CHECK(mixed.back() == 2);
}

TEST_CASE("Zeros of both signs are not equal, and many elements have a mean each") {
  Findings findings;
  CHECK_FALSE(std::signbit(mean_of({{0.0f}, {-0.0f}}, findings).front()));
  CHECK(findings.inexact);
  std::vector<float> a(10000), b(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) b[i] = static_cast<float>(i);
  const auto mean = mean_of({a, b}, findings);
  for (std::size_t i = 0; i < a.size(); ++i)
    if (mean[i] != static_cast<float>(i) / 2) FAIL("element " << i << " is " << mean[i]);
}

TEST_CASE("A mean is of tensors of one float dtype and one shape") {
  const auto refuses = [](const Operand& second) {
    const Operand first{"a", second.dtype == DType::kI32 ? DType::kI32 : DType::kF32, {2, 3}};
    const std::vector<Operand> inputs{first, second};
    return error_of([&] { mean_recipe()->validate(inputs, first); });
  };
  CHECK(refuses({"b", DType::kF32, {3, 2}}).message() ==
        "is F32 [3, 2], but a is F32 [2, 3]: their mean cannot be computed");
  CHECK(refuses({"b", DType::kBF16, {2, 3}}).tensor() == "b");
  CHECK(refuses({"b", DType::kI32, {2, 3}}).kind() == ErrorKind::kUnsupported);
}

}  // namespace
}  // namespace reshard::test
