#include "reshard/tensor/cast/format_element.h"

#include <bit>
#include <cstdlib>
#include <set>

#include "tensor/cast/cast_support.h"

namespace reshard::test {
namespace {

std::string format(DType dtype, std::uint64_t code) {
  return format_element(dtype, pack(dtype, {code}), 0);
}

TEST_CASE("Elements are shown with as few digits as tell them from their neighbours") {
  CHECK(format(DType::kF32, 0x3DCCCCCE) == "0.10000001");
  CHECK(format(DType::kF32, 0x80000000) == "-0");
  CHECK(format(DType::kF32, 1) == "1e-45");
  CHECK(format(DType::kF64, std::bit_cast<std::uint64_t>(0.1)) == "0.1");
  CHECK(format(DType::kF64, std::bit_cast<std::uint64_t>(0.1) + 1) == "0.10000000000000002");
  CHECK(format(DType::kBF16, 0x3F81) == "1.01");
  CHECK(format(DType::kBF16, 0x7F7F) == "3.39e+38");
  CHECK(format(DType::kF16, 0x7BFF) == "65500");
  CHECK(format(DType::kF16, 0x0001) == "6e-08");
  CHECK(format(DType::kF8E4M3, 0x7E) == "450");
  CHECK(format(DType::kF8E8M0, 0) == "5.877472e-39");
  CHECK(format(DType::kF4, 0xF) == "-6");
}

TEST_CASE("Infinities and NaNs are shown by name, and NaNs with their bits") {
  CHECK(format(DType::kF32, 0x7F800000) == "inf");
  CHECK(format(DType::kF16, 0xFC00) == "-inf");
  CHECK(format(DType::kBF16, 0x7FC1) == "nan(0x7fc1)");
  CHECK(format(DType::kF64, 0xFFF8000000000001) == "nan(0xfff8000000000001)");
  CHECK(format(DType::kF8E4M3, 0x7F) == "nan(0x7f)");
  CHECK(format(DType::kF8E5M2FNUZ, 0x80) == "nan(0x80)");
}

TEST_CASE("Integers, booleans and complex numbers are shown whole") {
  CHECK(format(DType::kI8, 0x80) == "-128");
  CHECK(format(DType::kU8, 0xFF) == "255");
  CHECK(format(DType::kI16, 0xFFFF) == "-1");
  CHECK(format(DType::kI64, std::uint64_t{1} << 63) == "-9223372036854775808");
  CHECK(format(DType::kU64, ~std::uint64_t{0}) == "18446744073709551615");
  CHECK(format(DType::kBool, 0) == "false");
  CHECK(format(DType::kBool, 1) == "true");
  CHECK(format(DType::kBool, 2) == "true(0x02)");
  CHECK(format(DType::kC64, 0x80000000'3F800000) == "(1, -0)");
}

TEST_CASE("An element is shown by its index, sub-byte elements from the low bits up") {
  const Bytes halves = pack(DType::kF16, {0x3C00, 0x4000, 0x4200});
  CHECK(format_element(DType::kF16, halves, 2) == "3");
  const Bytes fours = {std::byte{0x21}, std::byte{0x74}};
  CHECK(format_element(DType::kF4, fours, 0) == "0.5");
  CHECK(format_element(DType::kF4, fours, 3) == "6");
  const Bytes sixes = {std::byte{0xC8}, std::byte{0xF7}, std::byte{0x07}};  // 0x08 0x1F 0x3F 0x01
  CHECK(format_element(DType::kF6E2M3, sixes, 0) == "1");
  CHECK(format_element(DType::kF6E2M3, sixes, 1) == "7.5");
  CHECK(format_element(DType::kF6E2M3, sixes, 2) == "-7.5");
  CHECK(format_element(DType::kF6E2M3, sixes, 3) == "0.1");  // 0.125, which is the nearest
}

TEST_CASE("No two elements of a dtype of 16 bits or fewer are shown alike") {
  for (const DTypeRow& row : kDTypes) {
    if (row.bits > 16 || row.bits < 8) continue;
    INFO(row.name);
    std::set<std::string> texts;
    for (std::uint64_t code = 0; code >> row.bits == 0; ++code) texts.insert(format(row.dtype, code));
    CHECK(texts.size() == std::size_t{1} << row.bits);
  }
}

TEST_CASE("What is shown is rounded to the element again") {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2})
    for (std::uint64_t code = 0; code >> bits(dtype) == 0; ++code) {
      const std::string text = format(dtype, code);
      if (text.rfind("nan", 0) == 0) continue;
      const auto read = std::bit_cast<std::uint64_t>(std::strtod(text.c_str(), nullptr));
      if (cast_code(DType::kF64, read, dtype) != code) FAIL(name(dtype) << " " << text);
    }
}

}  // namespace
}  // namespace reshard::test
