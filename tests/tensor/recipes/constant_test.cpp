#include "reshard/tensor/recipes/constant.h"

#include <string>
#include <vector>

#include "support/catch.h"
#include "support/errors.h"

namespace reshard::test {
namespace {

using Kind = Constant::Kind;

std::string filled(const Constant& constant, const Box& box, std::size_t bytes) {
  std::string result(bytes, 'x');
  Findings findings;
  constant.apply({}, box, std::as_writable_bytes(std::span(result)), findings);
  CHECK_FALSE(findings.inexact);
  return result;
}

TEST_CASE("Every element of a constant has its bits, in boxes of any size, scalars and packed zeros too") {
  const Constant number(Kind::kRequired, DType::kU16, 0x6162);
  CHECK(filled(number, whole({}), 2) == "ba");
  CHECK(filled(number, {{7, 0}, {1, 3}}, 6) == "bababa");
  CHECK(filled(number, whole({0, 4}), 0).empty());
  const std::string many = filled(number, whole({10001}), 20002);
  for (std::size_t i = 0; i < many.size(); ++i)
    if (many[i] != "ba"[i % 2]) FAIL("byte " << i << " is " << many[i]);
  CHECK(filled({Kind::kPadding, DType::kF4, 0}, whole({6}), 3) == std::string(3, '\0'));
}

TEST_CASE("Constants of different kinds and values have different keys, and one has no inputs and one dtype") {
  CHECK(Constant(Kind::kPadding, DType::kF32, 0).key() == "zeros");
  CHECK(Constant(Kind::kPadding, DType::kBF16, 0xff7f).key() == "lowest numbers");
  CHECK(Constant(Kind::kRankNumber, DType::kI32, 3).key() == "rank 3");
  CHECK(Constant(Kind::kRequired, DType::kI32, 0).key() == "constant 0x0");
  const Constant number(Kind::kRequired, DType::kI32, 1);
  const Operand of_i32{"a", DType::kI32, {2}}, of_f32{"b", DType::kF32, {2}};
  CHECK_NOTHROW(number.validate({}, of_i32));
  CHECK(error_of([&] { number.validate({}, of_f32); }).tensor() == "b");
  CHECK(error_of([&] { number.validate({&of_f32, 1}, of_i32); }).kind() == ErrorKind::kInternal);
}

}  // namespace
}  // namespace reshard::test
