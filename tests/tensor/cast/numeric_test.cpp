#include "reshard/tensor/cast/numeric.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "support/catch.h"

namespace reshard::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

template <typename T>
ValueSummary summary_of(DType dtype, const std::vector<T>& values) {
  return summarize(dtype, std::as_bytes(std::span(values)));
}

TEST_CASE("Small floats have the values that their definitions list") {
  const std::map<DType, std::map<int, double>> listed = {
      {DType::kF4, {{0, 0.0}, {1, 0.5}, {2, 1.0}, {3, 1.5}, {4, 2.0}, {5, 3.0}, {6, 4.0}, {7, 6.0}, {0xF, -6.0}}},
      {DType::kF6E2M3, {{0x01, 0.125}, {0x08, 1.0}, {0x1F, 7.5}, {0x3F, -7.5}}},
      {DType::kF6E3M2, {{0x01, 0.0625}, {0x0C, 1.0}, {0x1F, 28.0}, {0x3F, -28.0}}},
      {DType::kF8E4M3, {{0x38, 1.0}, {0x01, 0x1p-9}, {0x7E, 448.0}, {0xFE, -448.0}}},
      {DType::kF8E5M2, {{0x3C, 1.0}, {0x01, 0x1p-16}, {0x7B, 57344.0}, {0x7C, kInf}, {0xFC, -kInf}}},
      {DType::kF8E4M3FNUZ, {{0x40, 1.0}, {0x7F, 240.0}, {0x01, 0x1p-10}}},
      {DType::kF8E5M2FNUZ, {{0x40, 1.0}, {0x7F, 57344.0}, {0x01, 0x1p-17}}},
      {DType::kF8E8M0, {{127, 1.0}, {0, 0x1p-127}, {254, 0x1p127}}}};
  for (const auto& [dtype, values] : listed)
    for (const auto& [code, value] : values) {
      INFO(name(dtype) << " code " << code);
      CHECK(small_float_value(dtype, static_cast<std::uint8_t>(code)) == value);
    }
}

TEST_CASE("Small floats are NaN for the codes that their definitions say, and for no others") {
  const std::map<DType, std::vector<int>> listed = {{DType::kF4, {}},
                                                    {DType::kF6E2M3, {}},
                                                    {DType::kF6E3M2, {}},
                                                    {DType::kF8E4M3, {0x7F, 0xFF}},
                                                    {DType::kF8E5M2, {0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF}},
                                                    {DType::kF8E4M3FNUZ, {0x80}},
                                                    {DType::kF8E5M2FNUZ, {0x80}},
                                                    {DType::kF8E8M0, {0xFF}}};
  for (const auto& [dtype, expected] : listed) {
    std::vector<int> codes;
    for (int code = 0; code < (1 << bits(dtype)); ++code)
      if (std::isnan(small_float_value(dtype, static_cast<std::uint8_t>(code)))) codes.push_back(code);
    INFO(name(dtype));
    CHECK(codes == expected);
  }
}

TEST_CASE("NaN counts and is nothing else, infinities are the extremes but not in the mean") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const ValueSummary v = summary_of<float>(DType::kF32, {nan, 1.0f, -inf, 3.0f, nan});
  CHECK(v.count == 5);
  CHECK(v.nan_count == 2);
  CHECK(v.inf_count == 1);
  CHECK(v.min == -kInf);
  CHECK(v.max == 3.0);
  CHECK(v.finite_count == 2);
  CHECK(v.mean() == 2.0);
}

TEST_CASE("Half floats of both kinds are decoded") {
  const ValueSummary f16 = summary_of<std::uint16_t>(DType::kF16, {0x3C00, 0xC000, 0x7BFF, 0x0001, 0x7C00, 0xFE00});
  CHECK(f16.min == -2.0);
  CHECK(f16.max == kInf);
  CHECK(f16.nan_count == 1);
  CHECK(f16.inf_count == 1);
  CHECK(f16.finite_sum == 1.0 - 2.0 + 65504.0 + 0x1p-24);
  const ValueSummary bf16 = summary_of<std::uint16_t>(DType::kBF16, {0x3F80, 0xC040, 0x7F80, 0x7FC0, 0x0080});
  CHECK(bf16.min == -3.0);
  CHECK(bf16.max == kInf);
  CHECK(bf16.nan_count == 1);
  CHECK(bf16.finite_sum == 1.0 - 3.0 + 0x1p-126);
}

TEST_CASE("Integers and booleans of every width keep their sign") {
  CHECK(summary_of<std::int8_t>(DType::kI8, {-128, 127}).min == -128);
  CHECK(summary_of<std::uint8_t>(DType::kU8, {255, 0}).max == 255);
  CHECK(summary_of<std::uint8_t>(DType::kBool, {1, 0, 1, 1}).mean() == 0.75);
  CHECK(summary_of<std::int16_t>(DType::kI16, {-32768, 1}).min == -32768);
  CHECK(summary_of<std::uint16_t>(DType::kU16, {65535, 1}).max == 65535);
  CHECK(summary_of<std::int32_t>(DType::kI32, {INT32_MIN, 1}).min == INT32_MIN);
  CHECK(summary_of<std::uint32_t>(DType::kU32, {UINT32_MAX, 1}).max == UINT32_MAX);
  CHECK(summary_of<std::int64_t>(DType::kI64, {INT64_MIN, 1}).min == -0x1p63);
  CHECK(summary_of<std::uint64_t>(DType::kU64, {UINT64_MAX, 1}).max == 0x1p64);
  CHECK(summary_of<double>(DType::kF64, {-1e300, 2.0}).min == -1e300);
  CHECK(summary_of<float>(DType::kC64, {1.0f, -4.0f}).min == -4.0);
}

TEST_CASE("Packed values are taken apart: two of four bits, four of six bits in three bytes") {
  const ValueSummary f4 = summary_of<std::uint8_t>(DType::kF4, {0x72, 0xF1});  // 1 6 0.5 -6
  CHECK(f4.count == 4);
  CHECK(f4.min == -6.0);
  CHECK(f4.max == 6.0);
  CHECK(f4.finite_sum == 1.5);
  // Codes 0x08, 0x1F, 0x3F, 0x00 of six bits, the first in the lowest bits.
  const unsigned packed = 0x08u | 0x1Fu << 6 | 0x3Fu << 12;
  const ValueSummary f6 = summary_of<std::uint8_t>(
      DType::kF6E2M3, {static_cast<std::uint8_t>(packed), static_cast<std::uint8_t>(packed >> 8),
                       static_cast<std::uint8_t>(packed >> 16)});
  CHECK(f6.count == 4);
  CHECK(f6.min == -7.5);
  CHECK(f6.max == 7.5);
  CHECK(f6.finite_sum == 1.0);
}

TEST_CASE("The mean of finite values is finite, though their sum is not") {
  constexpr double kMost = std::numeric_limits<double>::max();
  const std::vector<double> most(1000, kMost);
  ValueSummary v = summary_of<double>(DType::kF64, most);
  CHECK(v.mean() == kMost);
  CHECK(v.inf_count == 0);
  v.append(summary_of<double>(DType::kF64, std::vector<double>(1000, -kMost)));
  CHECK(v.mean() == 0);
  v.append(summary_of<double>(DType::kF64, {2000.0, 1.0}));
  CHECK(v.mean() == 2001.0 / 2002);
  CHECK(summary_of<double>(DType::kF64, {0x1p1023, 0x1p1023, 0x1p1023, 0x1p1000}).mean() == 0x1p1021 * 3 + 0x1p998);
  CHECK(summary_of<double>(DType::kF64, {1e300, 1.0}).mean() == 5e299);
  const std::vector<float> most_of_single(100, std::numeric_limits<float>::max());
  CHECK(summary_of<float>(DType::kF32, most_of_single).mean() == std::numeric_limits<float>::max());
}

TEST_CASE("Nothing summarises to nothing, and appending it changes nothing") {
  const ValueSummary none = summarize(DType::kBF16, {});
  CHECK(none.count == 0);
  ValueSummary some = summary_of<float>(DType::kF32, {2.0f});
  some.append(none);
  some.append(summary_of<float>(DType::kF32, {-6.0f}));
  CHECK(some.count == 2);
  CHECK(some.min == -6.0);
  CHECK(some.max == 2.0);
  CHECK(some.mean() == -2.0);
}

}  // namespace
}  // namespace reshard::test
