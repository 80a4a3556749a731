#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace reshard {

/// Lists the instruction sets that kernels support on this machine, best first, by Highway's names in lower case
/// ("avx2", "neon"). The last one is "scalar", which is plain C++. Results are the same with each.
std::vector<std::string> simd_targets();

/// Lists the instruction sets that this build has code for, on whatever machine; otherwise like simd_targets().
std::vector<std::string> compiled_simd_targets();

/// Returns the one of simd_targets() that kernels use.
/// \throws as simd_is_scalar.
std::string chosen_simd_target();

/// Selects one of simd_targets() for all kernels in the process. The default is the environment variable RESHARD_SIMD,
/// which is read once, or else the best instruction set.
/// \throws Error kUsage for any other name.
void use_simd_target(std::string_view name);

/// Whether kernels run as plain C++. The first call reads RESHARD_SIMD.
/// \throws Error kUsage if RESHARD_SIMD is set to a name that is not in simd_targets().
bool simd_is_scalar();

}  // namespace reshard
