#include "reshard/tensor/cast/drift.h"

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "reshard/tensor/cast/cast.h"
#include "support/catch.h"

namespace reshard::test {
namespace {

constexpr DType kFloats[] = {DType::kBF16, DType::kF16, DType::kF32, DType::kF64};

std::vector<std::byte> bytes_of(DType dtype, const std::vector<double>& values) {
  std::vector<std::byte> bytes(values.size() * bits(dtype) / 8);
  cast_elements(DType::kF64, std::as_bytes(std::span(values)), dtype, bytes, Overflow::kSaturate);
  return bytes;
}

ReplicaDistance distance(DType dtype, const std::vector<double>& a, const std::vector<double>& b) {
  ReplicaDistance result;
  result.add(dtype, bytes_of(dtype, a), bytes_of(dtype, b));
  return result;
}

/// The weights of a norm in training: near 1, some far from it.
std::vector<double> norm_weights(std::mt19937_64& random, std::size_t count) {
  std::normal_distribution<double> spread(1.0, 0.2);
  std::vector<double> values(count);
  for (double& value : values) value = spread(random);
  for (std::size_t i = 0; i < count; i += 97) values[i] *= 12;
  return values;
}

std::vector<double> moved(const std::vector<double>& values, double by, std::mt19937_64& random) {
  std::normal_distribution<double> step(0, by);
  std::vector<double> result = values;
  for (double& value : result) value += step(random);
  return result;
}

TEST_CASE("Only bfloat16 can drift") {
  for (const DTypeRow& row : kDTypes) {
    INFO(name(row.dtype));
    CHECK(can_drift(row.dtype) == (row.dtype == DType::kBF16));
  }
}

TEST_CASE("Replicas of the same values are not apart, whatever their bits") {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const ReplicaDistance same = distance(DType::kF32, {1, 0.0, nan, inf, -3}, {1, -0.0, nan, inf, -3});
  CHECK(same.differing() == 0);
  CHECK(same.max_abs() == 0);
  CHECK(same.relative() == 0);
  CHECK(same.is_drift());
}

TEST_CASE("The first element that differs is told, also beyond the first few hundred") {
  std::vector<double> first(3000, 1.0), second = first;
  ReplicaDistance apart;
  CHECK_FALSE(apart.add(DType::kF32, bytes_of(DType::kF32, first), bytes_of(DType::kF32, second)));
  second[2999] = second[1717] = 1.5;
  CHECK(apart.add(DType::kF32, bytes_of(DType::kF32, first), bytes_of(DType::kF32, second)) == 1717u);
}

TEST_CASE("Distances are those of the values") {
  const ReplicaDistance apart = distance(DType::kF64, {3, 4, 0, 12}, {3, 4.5, 0, 12});
  CHECK(apart.differing() == 1);
  CHECK(apart.max_abs() == 0.5);
  CHECK(std::abs(apart.relative() - 0.5 / std::sqrt(9 + 4.5 * 4.5 + 144)) < 1e-9);
}

TEST_CASE("Steps of training are drift: a step of one element's last bit, and some hundreds of steps of all") {
  std::mt19937_64 random(7);
  for (const DType dtype : kFloats) {
    INFO(name(dtype));
    const std::vector<double> first = norm_weights(random, 500);
    std::vector<double> second = first;
    second[3] *= 1 + std::ldexp(1.0, -7);
    CHECK(distance(dtype, first, second).is_drift());
    for (const double by : {0.001, 0.01, 0.03}) {
      const ReplicaDistance apart = distance(dtype, first, moved(first, by, random));
      CHECK(apart.is_drift());
      CHECK(apart.relative() < 0.04);
    }
  }
}

TEST_CASE("Weights that have nothing to do with each other are never drift") {
  std::mt19937_64 random(8);
  for (const std::size_t count : {16, 64, 4096})
    for (int i = 0; i < 50; ++i) {
      const std::vector<double> zeros(count, 0.0);
      const std::vector<double> a = moved(zeros, 0.02, random), b = moved(zeros, 0.02, random);
      INFO(count << " " << i);
      if (count >= 64) CHECK(distance(DType::kBF16, a, b).relative() > 0.9);
      CHECK_FALSE(distance(DType::kBF16, a, b).is_drift());
      CHECK_FALSE(distance(DType::kF32, a, zeros).is_drift());
    }
}

TEST_CASE("The limits are a twentieth of the length, and a quarter of an element") {
  const std::vector<double> first(400, 1.0);
  std::vector<double> second(400, 1.0);
  const auto near = [&](double by) {
    std::fill(second.begin(), second.end(), 1 - by);
    return distance(DType::kF64, first, second).is_drift();
  };
  CHECK(near(0.0499));
  CHECK_FALSE(near(0.0501));
  std::fill(second.begin(), second.end(), 1.0);
  second[9] = 1.24;
  CHECK(distance(DType::kF64, first, second).is_drift());
  second[9] = 1.5;  // by a third of itself, and by half of the root mean square
  CHECK_FALSE(distance(DType::kF64, first, second).is_drift());
  second[9] = -1.0;
  CHECK_FALSE(distance(DType::kF64, first, second).is_drift());
}

TEST_CASE("What is no finite number on one side alone is no drift") {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  for (const auto& [a, b] : {std::pair(1.0, nan), {nan, 1.0}, {inf, 1.0}, {inf, -inf}, {nan, inf}}) {
    const ReplicaDistance apart = distance(DType::kBF16, {1, 1, 1, a}, {1, 1, 1, b});
    CHECK(apart.differing() == 1);
    CHECK(std::isinf(apart.max_abs()));
    CHECK_FALSE(apart.is_drift());
  }
}

TEST_CASE("Parts of a tensor add up to the same distance in runs of any length") {
  std::mt19937_64 random(9);
  const std::vector<double> a = norm_weights(random, 3000), b = moved(a, 0.03, random);
  const auto a_bytes = bytes_of(DType::kBF16, a), b_bytes = bytes_of(DType::kBF16, b);
  const ReplicaDistance whole = distance(DType::kBF16, a, b);
  ReplicaDistance parts;
  for (std::size_t at = 0; at < a_bytes.size();) {
    const std::size_t count = std::min<std::size_t>(2 * (1 + random() % 700), a_bytes.size() - at);
    parts.add(DType::kBF16, std::span(a_bytes).subspan(at, count), std::span(b_bytes).subspan(at, count));
    at += count;
  }
  CHECK(parts.relative() == whole.relative());
  CHECK(parts.max_abs() == whole.max_abs());
  CHECK(parts.differing() == whole.differing());
}

}  // namespace
}  // namespace reshard::test
