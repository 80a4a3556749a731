#include "fuzz/target.h"

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "support/growth.h"

namespace {

double seconds_to_read(std::string_view input) {
  const double begin_s = reshard::test::thread_cpu_seconds();
  reshard::test::expect_no_crash([&] { reshard::test::fuzz(input); });
  return reshard::test::thread_cpu_seconds() - begin_s;
}

}  // namespace

/// Aborts if reading takes far more CPU time than inputs of that size do, so that work is found that grows with the
/// square of the input, which a fuzzer's own time limit lets pass for small ones.
extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  // With sanitizers, unoptimised: 64 KiB of any format take less than a tenth of this.
  const double limit_s = 0.5 + 10e-6 * static_cast<double>(size);
  const std::string_view input(reinterpret_cast<const char*>(bytes), size);
  double seconds = seconds_to_read(input);
  // A virtual machine that stood still counts that as CPU time.
  for (int again = 0; again < 2 && seconds > limit_s; ++again) seconds = std::min(seconds, seconds_to_read(input));
  if (seconds > limit_s) std::fprintf(stderr, "an input took %.3f s of CPU time, more than %.3f s\n", seconds, limit_s);
  reshard::test::check(seconds <= limit_s);
  return 0;
}
