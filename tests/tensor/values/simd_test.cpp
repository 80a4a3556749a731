#include "reshard/tensor/values/simd.h"

#include <set>

#include "reshard/tensor/cast/cast_kernels.h"
#include "support/errors.h"
#include "tensor/cast/cast_support.h"

namespace reshard::test {
namespace {

TEST_CASE("Plain C++ is the last of the instruction sets, and each can be asked for") {
  const BestSimdTarget restore;
  const std::vector<std::string> targets = simd_targets();
  REQUIRE(!targets.empty());
  CHECK(targets.back() == "scalar");
  for (const std::string& target : targets) {
    use_simd_target(target);
    CHECK(simd_is_scalar() == (target == "scalar"));
    CHECK(simd_targets() == targets);
  }
}

TEST_CASE("Each instruction set has casts of its own") {
  const BestSimdTarget restore;
  std::set<CastKernel> kernels;
  for (const std::string& target : simd_targets()) {
    use_simd_target(target);
    kernels.insert(simd_cast_kernel(DType::kF32, DType::kBF16));
    CHECK((simd_cast_kernel(DType::kF32, DType::kBF16) == nullptr) == (target == "scalar"));
  }
  CHECK(kernels.size() == simd_targets().size());
}

TEST_CASE("An instruction set of an unknown name is refused, and the list is told") {
  const Error error = error_of([] { use_simd_target("sse9"); });
  CHECK(error.kind() == ErrorKind::kUsage);
  CHECK_THAT(error.message(), Says("\"sse9\""));
  CHECK_THAT(error.hint(), Says("scalar"));
}

// The environment is read once a process, so that CTest runs these two by themselves, with RESHARD_SIMD set.
TEST_CASE("RESHARD_SIMD=sse9 is refused", "[.environment]") {
  for (int attempt = 0; attempt < 2; ++attempt) {
    const Error error = error_of([] { cast_code(DType::kF32, 0, DType::kBF16); });
    CHECK(error.kind() == ErrorKind::kUsage);
    CHECK_THAT(error.message(), Says("RESHARD_SIMD"));
  }
}

TEST_CASE("RESHARD_SIMD=scalar is obeyed", "[.environment]") {
  CHECK(simd_is_scalar());
}

}  // namespace
}  // namespace reshard::test
