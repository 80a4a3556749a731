#include "reshard/base/checked.h"

#include "support/catch.h"

namespace reshard::test {
namespace {

constexpr std::uint64_t kMax = UINT64_MAX;

TEST_CASE("Checked sums and products are nothing from 2^64 on") {
  CHECK(checked_add(2, 3) == 5);
  CHECK(checked_add(kMax, 0) == kMax);
  CHECK(checked_add(kMax - 1, 1) == kMax);
  CHECK_FALSE(checked_add(kMax, 1));
  CHECK_FALSE(checked_add(kMax, kMax));
  const std::uint64_t half = std::uint64_t{1} << 32;
  CHECK(checked_mul(6, 7) == 42);
  CHECK(checked_mul(kMax, 0) == 0);
  CHECK(checked_mul(kMax, 1) == kMax);
  CHECK(checked_mul(half, half - 1) == (half - 1) * half);
  CHECK_FALSE(checked_mul(half, half));
  CHECK_FALSE(checked_mul(kMax, 2));
}

}  // namespace
}  // namespace reshard::test
