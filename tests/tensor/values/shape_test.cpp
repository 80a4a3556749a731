#include "reshard/tensor/values/shape.h"

#include "support/catch.h"

namespace reshard::test {
namespace {

constexpr std::uint64_t kTwo63 = std::uint64_t{1} << 63;

TEST_CASE("A shape's elements are the product of its sizes, from the left, so a late zero does not undo an overflow") {
  CHECK(num_elems({}) == 1);
  CHECK(num_elems({2, 3, 5}) == 30);
  CHECK(num_elems({2, 0, 5}) == 0);
  CHECK(num_elems({kTwo63}) == kTwo63);
  CHECK(num_elems({0, kTwo63, 4}) == 0);
  CHECK_FALSE(num_elems({kTwo63, 4, 0}));
  CHECK_FALSE(num_elems({kTwo63, 2}));
}

TEST_CASE("A tensor's bytes are its bits over eight, if these fill whole bytes and do not overflow") {
  CHECK(num_bytes(DType::kF32, {}) == 4);
  CHECK(num_bytes(DType::kC64, {3}) == 24);
  CHECK(num_bytes(DType::kF4, {2, 3}) == 3);
  CHECK(num_bytes(DType::kF6E2M3, {4}) == 3);
  CHECK(num_bytes(DType::kU64, {0, kTwo63, 4}) == 0);
  CHECK(num_bytes(DType::kU64, {(std::uint64_t{1} << 58) - 1}) == (std::uint64_t{1} << 61) - 8);
  CHECK_FALSE(num_bytes(DType::kU8, {kTwo63, 4, 0}));
  CHECK_FALSE(num_bytes(DType::kU8, {kTwo63}));
  CHECK_FALSE(num_bytes(DType::kU64, {std::uint64_t{1} << 58}));
  CHECK_FALSE(num_bytes(DType::kF4, {}));
  CHECK_FALSE(num_bytes(DType::kF4, {3, 3}));
  for (const std::uint64_t elems : {1, 2, 3, 5}) CHECK_FALSE(num_bytes(DType::kF6E3M2, {elems}));
}

TEST_CASE("A shape is shown in brackets") {
  CHECK(to_string(Dims{}) == "[]");
  CHECK(to_string(Dims{32}) == "[32]");
  CHECK(to_string(Dims{32, 0, 128}) == "[32, 0, 128]");
}

}  // namespace
}  // namespace reshard::test
