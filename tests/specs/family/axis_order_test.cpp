#include "reshard/specs/family/axis_order.h"

#include "support/catch.h"
#include "support/errors.h"

namespace reshard::test {
namespace {

TEST_CASE("Axes without a number take what the others leave of their dim") {
  const auto order =
      AxisOrder::parse("expert (part:parts tile row<=8 lane:4) (word pair:2) -> expert word (part tile lane row)");
  REQUIRE(order);
  const Dims shape{3, 120, 10}, padded{3, 128, 12};
  const auto arrangement = order->arrangement(shape, padded, 2);
  CHECK(arrangement->from_shape() == shape);
  CHECK(arrangement->word() == 2);
  CHECK(arrangement->to_shape() == Dims{3, 6, 128});
  CHECK(arrangement->key() == "(0:3) (1:2 2:2 3:8 4:4) (5:6) of 2 -> (0:3) (5:6) (1:2 2:2 4:4 3:8)");
  CHECK(order->arrangement({3, 16, 2}, {3, 16, 2}, 2)->key() ==
        "(0:3) (1:2 2:1 3:2 4:4) (5:1) of 2 -> (0:3) (5:1) (1:2 2:1 4:4 3:2)");
}

TEST_CASE("Axes that do not divide a dim are errors that name it") {
  const auto order = AxisOrder::parse("(part:parts tile row<=8) -> (part row tile)");
  REQUIRE(order);
  const auto refused = [&](const Dims& shape, std::uint32_t parts) {
    const Error error = error_of([&] { order->arrangement(shape, shape, parts); });
    CHECK(error.kind() == ErrorKind::kUsage);
    return error.message();
  };
  CHECK(refused({24}, 5).starts_with("dim 0 has 24 elements, which 5 does not divide"));
  CHECK(refused({24}, 2).starts_with("dim 0 has 24 elements, which 16 does not divide"));
  CHECK(refused({0}, 2).starts_with("dim 0 has no elements"));
  CHECK(refused({8, 8}, 2).starts_with("has 2 dims, and 1 in its order"));
  const auto fixed = AxisOrder::parse("(a:2 b:4) -> (b a)");
  REQUIRE(fixed);
  CHECK(
      error_of([&] { fixed->arrangement({16}, {16}, 1); }).message().starts_with("dim 0 has 16 elements, expected 8"));
}

TEST_CASE("Texts that are no order of axes are not parsed") {
  for (const char* text : {"a b", "a -> b", "a -> (a", "a b -> a", "a -> a a", "a:0 -> a", "(a b) -> (b a)", "a:x -> a",
                           "(a<=2 b<=2) -> (b a)", ":2 -> a", "a -> a b", "(a (b c) -> a", "a:70000 -> a",
                           "(a pair:4) -> a", "(a pair) -> a"})
    CHECK_FALSE(AxisOrder::parse(text));
}

}  // namespace
}  // namespace reshard::test
