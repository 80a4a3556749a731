#include "reshard/engine/move/memory_plan.h"

#include "support/catch.h"
#include "support/random.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

MemoryPlan plan_for(std::uint64_t max_memory_bytes, unsigned threads) {
  const SourceMap source;
  const TargetMap target;
  RunOptions options;
  options.max_memory_bytes = max_memory_bytes;
  options.threads = threads;
  return plan_memory({&source, &target}, {}, options, 0, false);
}

TEST_CASE("Buffers of all threads stay within the memory that is allowed, and fewer threads work if it is scarce") {
  for (const std::uint64_t seed : seeds(200)) {
    Random random(seed);
    const std::uint64_t limit = pick(random, 4 * kMiB, 600 * kMiB);
    const auto threads = static_cast<unsigned>(pick(random, 1, 64));
    CAPTURE(seed, limit, threads);
    const MemoryPlan plan = plan_for(limit, threads);
    CHECK(plan.threads >= 1);
    CHECK(plan.threads <= threads);
    CHECK(plan.threads * kPlainBuffers * plan.blocks.bytes <= limit);
    CHECK(plan.blocks.bytes >= 64 << 10);  // worth a system call
    CHECK(plan.blocks.strided_bytes >= plan.blocks.bytes);
  }
  CHECK(plan_for(4 * kMiB, 16).threads == 2);
  CHECK(plan_for(600 * kMiB, 16).threads == 16);
  CHECK(plan_for(600 * kMiB, 16).blocks.bytes == kBlockBytes);
  check_refused([] { plan_for(4 * kMiB - 1, 1); },
                {.kind = ErrorKind::kUsage, .says = "too little to work with", .hint = "at least 4.00 MiB"});
}

}  // namespace
}  // namespace reshard::test
