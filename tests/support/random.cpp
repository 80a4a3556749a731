#include "support/random.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace reshard::test {

std::uint64_t share_of_trials() {
  const char* share = std::getenv("RESHARD_TEST_SHARE");
  return share ? std::max<std::uint64_t>(1, std::strtoull(share, nullptr, 10)) : 1;
}

std::vector<std::uint64_t> seeds(std::uint64_t count) {
  if (const char* one = std::getenv("RESHARD_TEST_SEED")) return {std::strtoull(one, nullptr, 10)};
  count = std::max<std::uint64_t>(1, count / share_of_trials());
  std::vector<std::uint64_t> all;
  for (std::uint64_t seed = 1; seed <= count; ++seed) all.push_back(seed);
  return all;
}

bool has_all_seeds() {
  return std::getenv("RESHARD_TEST_SEED") == nullptr && share_of_trials() == 1;
}

std::uint64_t pick(Random& random, std::uint64_t low, std::uint64_t high) {
  return low + random() % (high - low + 1);
}

std::uint64_t one_of(Random& random, std::initializer_list<std::uint64_t> values) {
  return values.begin()[random() % values.size()];
}

TensorData random_tensor(Random& random, DType dtype, const Dims& shape) {
  TensorData tensor{dtype, shape, std::string(num_bytes(dtype, shape).value(), '\0')};
  // SplitMix64: https://prng.di.unimi.it/splitmix64.c. Tests without optimisation spend much of their time here.
  std::uint64_t state = random();
  for (std::size_t at = 0; at < tensor.bytes.size(); at += sizeof state) {
    std::uint64_t word = state += 0x9e3779b97f4a7c15;
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
    word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
    word ^= word >> 31;
    std::memcpy(tensor.bytes.data() + at, &word, std::min(sizeof word, tensor.bytes.size() - at));
  }
  return tensor;
}

}  // namespace reshard::test
