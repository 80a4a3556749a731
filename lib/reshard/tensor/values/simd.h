#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace reshard {

/// The instruction sets that kernels can run with on this machine, best first, by Highway's names in lower case
/// ("avx2", "neon"); the last is "scalar", which is plain C++. Results are the same with each.
std::vector<std::string> simd_targets();

/// Makes kernels run with one of simd_targets() from now on, in the whole process. Without a call it is the one that
/// the environment variable RESHARD_SIMD names, which is read once; without that, the best.
/// \throws Error kUsage for any other name.
void use_simd_target(std::string_view name);

/// Whether kernels run as plain C++. The first call reads RESHARD_SIMD.
/// \throws Error kUsage if RESHARD_SIMD is set to a name that is not in simd_targets().
bool simd_is_scalar();

}  // namespace reshard
