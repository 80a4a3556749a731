#pragma once

#include <cstddef>
#include <cstdio>
#include <cstdlib>

#include "support/growth.h"

namespace reshard::test {

/// Aborts if what is done while it lives takes far more CPU time than inputs of its size do, so that a fuzzer finds work
/// that grows with the square of the input, which its own time limit lets pass for small ones.
class TimeLimit {
 public:
  explicit TimeLimit(std::size_t input_bytes)
      : limit_s_(kLeastSeconds + kSecondsPerByte * static_cast<double>(input_bytes)) {}
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;
  ~TimeLimit() {
    const double seconds = thread_cpu_seconds() - begin_s_;
    if (seconds <= limit_s_) return;
    std::fprintf(stderr, "an input took %.3f s of CPU time, more than %.3f s\n", seconds, limit_s_);
    std::abort();
  }

 private:
  // With sanitizers, unoptimised: 64 KiB of any format take less than a tenth of this.
  static constexpr double kLeastSeconds = 0.5;
  static constexpr double kSecondsPerByte = 10e-6;

  double limit_s_;
  double begin_s_ = thread_cpu_seconds();
};

}  // namespace reshard::test
