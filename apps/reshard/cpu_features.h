#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace reshard::cli {

/// A set of extensions of the instruction set, one bit per row of cpu_features.cpp.
using CpuFeatures = std::uint64_t;

/// The extensions that this machine has.
CpuFeatures cpu_features();

/// The extensions that the compiler used outside of code that is chosen at run time. Empty for a build without -march
/// or -m options. A machine that lacks one cannot run the program: it ends at its start, with a message and the exit
/// code of kUnsupported, instead of at the first such instruction (SIGILL).
extern const CpuFeatures kCompiledFor;

/// "avx2", …
std::vector<std::string> names_of(CpuFeatures features);

/// Writes the message for the lacking extensions into `text`, without memory of its own and without the C++ library,
/// whose code may already have been compiled for another machine. \returns the number of bytes, at most `size`.
std::size_t lacking_text(CpuFeatures lacking, char* text, std::size_t size);

}  // namespace reshard::cli
