// What the tests of kernels share.
#pragma once

#include <cstddef>
#include <vector>

#include "reshard/tensor/values/simd.h"
#include "support/catch.h"

namespace reshard::test {

using Bytes = std::vector<std::byte>;

/// Goes back to the best instruction set when a test ends.
struct BestSimdTarget {
  BestSimdTarget() = default;
  BestSimdTarget(const BestSimdTarget&) = delete;
  BestSimdTarget& operator=(const BestSimdTarget&) = delete;
  ~BestSimdTarget() { use_simd_target(simd_targets().front()); }
};

/// Runs a check with each instruction set.
template <typename Check>
void with_each_simd_target(Check&& check) {
  const BestSimdTarget restore;
  for (const std::string& target : simd_targets()) {
    INFO(target);
    use_simd_target(target);
    check();
  }
}

}  // namespace reshard::test
