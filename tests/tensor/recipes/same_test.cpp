#include "reshard/tensor/recipes/same.h"

#include "support/catch.h"
#include "support/errors.h"

namespace reshard::test {
namespace {

std::string computed(const std::vector<std::string>& inputs) {
  const Box box = whole({3});
  std::vector<InputBox> boxes;
  for (const std::string& bytes : inputs)
    boxes.push_back({box, DType::kU8, std::as_bytes(std::span(bytes.data(), bytes.size()))});
  std::string result(3, '\0');
  Findings findings;
  same_recipe()->apply(boxes, box, std::as_writable_bytes(std::span(result)), findings);
  CHECK_FALSE(findings.inexact);
  return result;
}

TEST_CASE("What several tensors have in common is any of them, if they are equal") {
  CHECK(computed({"abc"}) == "abc");
  CHECK(computed({"abc", "abc", "abc"}) == "abc");
  CHECK(error_of([] { computed({"abc", "abc", "abd"}); }).kind() == ErrorKind::kUnsupported);
}

TEST_CASE("Tensors of other shapes or dtypes have nothing in common") {
  const Operand wanted{"out", DType::kF32, {2}};
  const auto error = [&](std::vector<Operand> inputs) {
    return error_of([&] { same_recipe()->validate(inputs, wanted); });
  };
  same_recipe()->validate(std::vector<Operand>{{"a", DType::kF32, {2}}, {"b", DType::kF32, {2}}}, wanted);
  CHECK(error({{"a", DType::kF32, {2}}, {"b", DType::kF32, {3}}}).kind() == ErrorKind::kUnsupported);
  CHECK(error({{"a", DType::kF32, {2}}, {"b", DType::kF16, {2}}}).kind() == ErrorKind::kUnsupported);
  CHECK(error({}).kind() == ErrorKind::kInternal);
}

}  // namespace
}  // namespace reshard::test
