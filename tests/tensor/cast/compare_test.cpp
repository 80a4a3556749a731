#include "reshard/tensor/cast/compare.h"

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "reshard/tensor/values/float_format.h"
#include "tensor/cast/cast_support.h"

namespace reshard::test {
namespace {

constexpr std::optional<Tolerance> kExact;  // bits, where dtypes are equal
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <typename T>
Bytes bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

DifferenceSummary compare(DType dtype, const Bytes& a, const Bytes& b, std::optional<Tolerance> tolerance = kExact) {
  return compare_elements(dtype, a, dtype, b, tolerance, 10);
}

DifferenceSummary compare_floats(const std::vector<float>& a, const std::vector<float>& b, Tolerance tolerance) {
  return compare(DType::kF32, bytes_of(a), bytes_of(b), tolerance);
}

std::vector<std::size_t> indices(const DifferenceSummary& summary) {
  std::vector<std::size_t> found;
  for (const Difference& difference : summary.first) found.push_back(difference.index);
  return found;
}

using Indices = std::vector<std::size_t>;

TEST_CASE("Equal dtypes can be compared, and any two real ones of 8 bits and more") {
  for (const DTypeRow& a : kDTypes)
    for (const DTypeRow& b : kDTypes) {
      const auto is_plain = [](const DTypeRow& row) { return row.bits >= 8 && row.kind != DTypeClass::kComplex; };
      CHECK(can_compare(a.dtype, b.dtype) == (a.dtype == b.dtype || (is_plain(a) && is_plain(b))));
    }
}

TEST_CASE("Equal bytes have no difference, whatever they are, and neither has nothing") {
  Bytes bytes(24 * 1000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 37);
  for (const DTypeRow& row : kDTypes)
    for (const std::optional<Tolerance>& tolerance : {kExact, std::optional(Tolerance{1e-3, 0})}) {
      const DifferenceSummary summary = compare(row.dtype, bytes, bytes, tolerance);
      CHECK(summary.differing == 0);
      CHECK(summary.first.empty());
      CHECK(summary.max_abs_difference == 0);
      CHECK(compare(row.dtype, {}, {}, tolerance).differing == 0);
    }
}

TEST_CASE("Without tolerance every bit counts: the sign of zero and the payload of NaN") {
  const Bytes a = pack(DType::kF32, {0, 0x7FC00000, 0x3F800000, 0x7F800000});
  const Bytes b = pack(DType::kF32, {0x80000000, 0x7FC00001, 0x3F800001, 0x7F800000});
  const DifferenceSummary summary = compare(DType::kF32, a, b);
  CHECK(summary.differing == 3);
  CHECK(indices(summary) == Indices{0, 1, 2});
  CHECK(std::signbit(summary.first[0].b));
  CHECK(std::isnan(summary.first[1].a));
  CHECK(summary.max_abs_difference == 0x1p-23);
}

TEST_CASE("A tolerance of 0 compares values, as it does between dtypes: 0 is -0, NaN is NaN, and no more is") {
  const Tolerance zero;
  const Bytes a = pack(DType::kF32, {0, 0x7FC00000, 0x3F800000, 0x7F800000, 0x7FC00000, 0x00000001});
  const Bytes b = pack(DType::kF32, {0x80000000, 0xFFC00001, 0x3F800001, 0xFF800000, 0x7F800000, 0x80000001});
  CHECK(indices(compare(DType::kF32, a, b, zero)) == Indices{2, 3, 4, 5});
  const Bytes flags = pack(DType::kBool, {0, 1, 2, 0}), others = pack(DType::kBool, {0, 2, 0x80, 1});
  CHECK(indices(compare(DType::kBool, flags, others, zero)) == Indices{3});
  const Bytes large = pack(DType::kI64, {std::uint64_t{1} << 60, 7});
  const Bytes larger = pack(DType::kI64, {(std::uint64_t{1} << 60) + 1, 7});
  CHECK(indices(compare(DType::kI64, large, larger, zero)) == Indices{0});
  for (const DTypeRow& row : kDTypes) {
    const auto format = float_format(row.dtype);
    if (!format || row.bits < 8) continue;
    INFO(row.name);
    const bool one_zero = format->specials == FloatSpecials::kNegativeZeroNan;
    const Bytes zeros = pack(row.dtype, {0}), negative = pack(row.dtype, {format->sign_mask()});
    CHECK(compare(row.dtype, zeros, negative, zero).differing == (one_zero ? 1 : 0));
    CHECK(compare(row.dtype, zeros, negative).differing == 1);
  }
}

TEST_CASE("Any single bit that differs is found in any dtype, at its element") {
  constexpr std::uint64_t kSeed = 5;
  INFO("seed " << kSeed);
  std::mt19937_64 random(kSeed);
  for (const DTypeRow& row : kDTypes) {
    INFO(row.name);
    Bytes a(3 * 8 * 1000);
    for (std::byte& byte : a) byte = static_cast<std::byte>(random());
    for (int i = 0; i < 200; ++i) {
      const std::size_t bit = random() % (a.size() * 8);
      Bytes b = a;
      b[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
      const DifferenceSummary summary = compare(row.dtype, a, b);
      REQUIRE(summary.differing == 1);
      REQUIRE(indices(summary) == Indices{bit / row.bits});
    }
  }
}

TEST_CASE("All differences are counted, and only the first are kept, in their order") {
  std::vector<float> a(5000, 1.0f);
  std::vector<float> b = a;
  for (std::size_t i = 7; i < b.size(); i += 3) b[i] = 2.0f;
  b[4000] = -9.0f;
  const DifferenceSummary summary = compare_elements(DType::kF32, bytes_of(a), DType::kF32, bytes_of(b), kExact, 3);
  CHECK(summary.differing == 1665);
  CHECK(indices(summary) == Indices{7, 10, 13});
  CHECK(summary.first[2].a == 1.0);
  CHECK(summary.first[2].b == 2.0);
  CHECK(summary.max_abs_difference == 10.0);
  CHECK(compare_elements(DType::kF32, bytes_of(a), DType::kF32, bytes_of(b), kExact, 0).first.empty());
}

TEST_CASE("Within absolute and relative tolerance values are equal, and the limit itself is within") {
  CHECK(indices(compare_floats({1, 1, 1}, {1.25f, 1.5f, 0.5f}, {0, 0.25})) == Indices{1, 2});
  CHECK(indices(compare_floats({3, 5, 9}, {4, 4, 12}, {0.25, 0})) == Indices{});
  CHECK(indices(compare_floats({4, 4, 12}, {3, 5, 9}, {0.25, 0})) == Indices{0, 2});  // relative to b, not to a
  CHECK(indices(compare_floats({0, 10}, {0.5f, 12.5f}, {0.125, 0.5})) == Indices{1});
  CHECK(compare_floats({1, 2}, {1.25f, 2}, {0, 1}).max_abs_difference == 0.25);  // of equal ones too
}

TEST_CASE("With tolerance NaN equals NaN, and an infinity only itself, however large the tolerance") {
  const Tolerance huge{1e300, 1e300};
  CHECK(indices(compare_floats({kNan, kNan, 1}, {-kNan, 1, kNan}, huge)) == Indices{1, 2});
  CHECK(indices(compare_floats({kInf, -kInf, kInf, 1, kInf}, {kInf, -kInf, -kInf, kInf, 1}, huge)) == Indices{2, 3, 4});
  CHECK(compare_floats({kInf, kNan, 1}, {kInf, 1, 1.5f}, huge).max_abs_difference == 0.5);
  CHECK(compare_floats({kInf}, {1}, huge).max_abs_difference == kInf);
  CHECK(compare_floats({0.0f}, {-0.0f}, huge).differing == 0);
}

TEST_CASE("Different dtypes without tolerance differ if their values do, exactly") {
  const auto differing = [](DType a_dtype, const Codes& a, DType b_dtype, const Codes& b) {
    return indices(compare_elements(a_dtype, pack(a_dtype, a), b_dtype, pack(b_dtype, b), kExact, 10));
  };
  CHECK(differing(DType::kBF16, {0x3F80, 0x8000, 0x7FC1, 0xFF80, 0x0001}, DType::kF32,
                  {0x3F800000, 0, 0xFFC00000, 0xFF800000, 0x00010000}) == Indices{});
  CHECK(differing(DType::kBF16, {0x3F80, 0x7FC0, 0xFF80}, DType::kF32, {0x3F800001, 0x3F800000, 0x7F800000}) ==
        Indices{0, 1, 2});
  CHECK(differing(DType::kI64, {9007199254740993, 9007199254740992}, DType::kF64,
                  {std::bit_cast<std::uint64_t>(0x1p53), std::bit_cast<std::uint64_t>(0x1p53)}) == Indices{0});
  CHECK(differing(DType::kI64, {~std::uint64_t{0}, 5}, DType::kU64, {~std::uint64_t{0}, 5}) == Indices{0});
  CHECK(differing(DType::kF64, {0, 0x8000000000000000, 0x7FF0000000000000, 0x7FF8000000000000}, DType::kI64,
                  {0, 0, 5, 5}) == Indices{2, 3});
  CHECK(differing(DType::kI8, {0xFF}, DType::kI32, {0xFFFFFFFF}) == Indices{});
  CHECK(differing(DType::kBool, {2, 1, 0}, DType::kU8, {1, 1, 1}) == Indices{2});
  CHECK(differing(DType::kF8E4M3, {0x38, 0x7F}, DType::kF8E5M2, {0x3C, 0x7F}) == Indices{});
}

TEST_CASE("Integers of 64 bits are told apart where doubles are not") {
  const Codes a = {std::uint64_t{1} << 62, std::uint64_t{1} << 62, 5};
  const Codes b = {(std::uint64_t{1} << 62) + 1, std::uint64_t{1} << 62, 5};
  for (const DType dtype : {DType::kI64, DType::kU64}) {
    const DifferenceSummary summary = compare(dtype, pack(dtype, a), pack(dtype, b));
    CHECK(indices(summary) == Indices{0});
    CHECK(summary.max_abs_difference == 1);
    CHECK(compare(dtype, pack(dtype, a), pack(dtype, b), Tolerance{0, 0.5}).differing == 1);
    CHECK(compare(dtype, pack(dtype, a), pack(dtype, b), Tolerance{0, 1}).differing == 0);
  }
  const Bytes low = pack(DType::kI64, {std::uint64_t{1} << 63});
  const Bytes high = pack(DType::kI64, {~std::uint64_t{0} >> 1});
  CHECK(compare(DType::kI64, low, high).max_abs_difference == 0x1p64);
}

TEST_CASE("A complex element differs once, and shows its first part that differs") {
  const std::vector<float> a = {1, 2, 3, 4, 5, 6};
  const std::vector<float> b = {1, 2, 3.5f, 4.25f, 5, 7};
  const DifferenceSummary summary = compare(DType::kC64, bytes_of(a), bytes_of(b));
  CHECK(summary.differing == 2);
  CHECK(indices(summary) == Indices{1, 2});
  CHECK(summary.first[0].b == 3.5);
  CHECK(summary.first[1].a == 6);
  CHECK(summary.max_abs_difference == 1);
  CHECK(indices(compare(DType::kC64, bytes_of(a), bytes_of(b), Tolerance{0, 0.5})) == Indices{2});
}

TEST_CASE("Sub-byte elements are taken from the low bits up, with tolerance too") {
  const Bytes a = {std::byte{0x21}, std::byte{0x43}};  // 0.5 1 1.5 2
  const Bytes b = {std::byte{0x31}, std::byte{0x63}};  // 0.5 1.5 1.5 4
  CHECK(indices(compare(DType::kF4, a, b)) == Indices{1, 3});
  CHECK(compare(DType::kF4, a, b).max_abs_difference == 2);
  CHECK(indices(compare(DType::kF4, a, b, Tolerance{0, 0.5})) == Indices{3});
}

TEST_CASE("Elements are compared at any alignment and with each instruction set") {
  constexpr std::uint64_t kSeed = 11;
  INFO("seed " << kSeed);
  std::mt19937_64 random(kSeed);
  Bytes a(1 + 2 * 3000);
  for (std::byte& byte : a) byte = static_cast<std::byte>(random());
  const auto a_part = std::span(a).subspan(1);
  Bytes b(3 + 4 * 3000);
  const auto b_part = std::span(b).subspan(3);
  cast_elements(DType::kBF16, a_part, DType::kF32, b_part, Overflow::kSaturate);
  b_part[4 * 2900 + 3] ^= std::byte{0x80};
  const BestSimdTarget restore;
  for (const std::string& target : simd_targets()) {
    INFO(target);
    use_simd_target(target);
    for (const std::optional<Tolerance>& tolerance : {kExact, std::optional(Tolerance{1e-9, 0})})
      CHECK(indices(compare_elements(DType::kBF16, a_part, DType::kF32, b_part, tolerance, 10)) == Indices{2900});
  }
}

}  // namespace
}  // namespace reshard::test
