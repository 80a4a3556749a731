// Compiled for the baseline of the architecture, whatever the other sources are compiled for (CMakeLists.txt): this
// code runs before any other of the program. It uses no inline function of the C++ library, since the linker may take
// the copy of another source.

#include <unistd.h>

#include "cpu_feature_list.h"
#include "cpu_features.h"

namespace reshard::cli {
namespace {

constexpr int kUnsupportedExitCode = 4;  // that of ErrorKind::kUnsupported; a test compares them

void append(const char* part, char* text, std::size_t size, std::size_t& length) {
  while (*part != '\0' && length < size) text[length++] = *part++;
}

}  // namespace

CpuFeatures cpu_features() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_cpu_init();
#endif
  CpuFeatures features = 0;
  [[maybe_unused]] int i = 0;
#define RESHARD_ADD(name, macro, has)       \
  if (has) features |= CpuFeatures{1} << i; \
  ++i;
  RESHARD_CPU_FEATURES(RESHARD_ADD)
#undef RESHARD_ADD
  return features;
}

std::size_t lacking_text(CpuFeatures lacking, char* text, std::size_t size) {
  std::size_t length = 0;
  append("reshard: this CPU lacks instructions that this program was compiled for:", text, size, length);
#define RESHARD_ADD(name, macro, has)                    \
  if (lacking & 1) append(" " name, text, size, length); \
  lacking >>= 1;
  RESHARD_CPU_FEATURES(RESHARD_ADD)
#undef RESHARD_ADD
  append("\n  try: a build without -march and -m options, which runs on every CPU and still uses what it finds\n", text,
         size, length);
  return length;
}

/// Before the constructors of all other sources.
__attribute__((constructor(101))) static void refuse_unsupported_cpu() {
  const CpuFeatures lacking = kCompiledFor & ~cpu_features();
  if (lacking == 0) return;
  char text[512];
  const std::size_t length = lacking_text(lacking, text, sizeof text);
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, length);
  ::_exit(kUnsupportedExitCode);
}

}  // namespace reshard::cli
