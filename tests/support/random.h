#pragma once

#include <cstdint>
#include <initializer_list>
#include <random>
#include <vector>

#include "support/files.h"

/// What tests of properties are tried on: everything is drawn from a seed, which a failure prints.
namespace reshard::test {

using Random = std::mt19937_64;

/// 1 to `count`, or the first of RESHARD_TEST_SHARE equal parts of them, or RESHARD_TEST_SEED alone.
std::vector<std::uint64_t> seeds(std::uint64_t count);

/// RESHARD_TEST_SHARE, or 1: of 3, a test takes each third of its trials where these have no seeds.
std::uint64_t share_of_trials();

/// All of `trials`, or every fourth where RESHARD_TEST_SHARE is more than 1.
template <typename Trial>
std::vector<Trial> sample_of(const std::vector<Trial>& trials) {
  const std::size_t step = share_of_trials() > 1 ? 4 : 1;
  std::vector<Trial> sample;
  for (std::size_t i = 0; i < trials.size(); i += step) sample.push_back(trials[i]);
  return sample;
}

/// The same for trials in nested loops: one of `step`.
class Sample {
 public:
  explicit Sample(std::size_t step) : step_(share_of_trials() > 1 ? step : 1) {}
  bool skips() { return count_++ % step_ != 0; }

 private:
  std::size_t step_;
  std::size_t count_ = 0;
};

/// Whether seeds() has them all, so that a test may count what they have met.
bool has_all_seeds();

/// A whole number of [low, high].
std::uint64_t pick(Random& random, std::uint64_t low, std::uint64_t high);

std::uint64_t one_of(Random& random, std::initializer_list<std::uint64_t> values);

TensorData random_tensor(Random& random, DType dtype, const Dims& shape);

}  // namespace reshard::test
