#include "build_facts.h"

#include <fmt/format.h>
#include <sys/auxv.h>

#include <string>

#include "cpu_features.h"
#include "reshard/tensor/values/simd.h"

#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif

// Functions that memory allocators export; null if the program uses another allocator.
extern "C" {
__attribute__((weak)) int mi_version();
__attribute__((weak)) int mallctl(const char* name, void* old, std::size_t* old_bytes, void* value, std::size_t bytes);
__attribute__((weak)) const char* tc_version(int* major, int* minor, const char** patch);
}

namespace reshard::cli {
namespace {

std::string compiled_libc() {
#ifdef __GLIBC__
  return fmt::format("glibc {}.{}", __GLIBC__, __GLIBC_MINOR__);
#else
  return "unknown";
#endif
}

const char* architecture() {
#if defined(__x86_64__)
  return "x86_64";
#elif defined(__aarch64__)
  return "aarch64";
#else
  return "unknown";
#endif
}

std::string compiler() {
#ifdef __clang__
  return fmt::format("Clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  return fmt::format("GCC {}", __VERSION__);
#endif
}

std::string allocator() {
  if (mi_version != nullptr) return fmt::format("mimalloc {}.{}", mi_version() / 100, mi_version() % 100);
  if (mallctl != nullptr) return "jemalloc";
  if (tc_version != nullptr) return "tcmalloc";
  return libc_name();
}

/// Whether the program is statically linked and so cannot load plug-ins.
bool is_static() {
  return ::getauxval(AT_BASE) == 0;  // no dynamic linker
}

}  // namespace

std::string libc_name() {
#ifdef __GLIBC__
  return fmt::format("glibc {}", ::gnu_get_libc_version());
#else
  return "unknown";
#endif
}

Document build_facts() {
  Document json;
  json["architecture"] = architecture();
  json["compiler"] = compiler();
#ifdef NDEBUG
  json["assertions"] = false;
#else
  json["assertions"] = true;
#endif
  json["static"] = is_static();
  json["libc"] = compiled_libc();
  json["allocator"] = allocator();
  json["mpi"] = !is_static();
#ifdef RESHARD_HAS_ZSTD
  json["zstd"] = true;
#else
  json["zstd"] = false;
#endif
  json["required_cpu_features"] = names_of(kCompiledFor);
  json["instruction_sets"] = compiled_simd_targets();
  return json;
}

}  // namespace reshard::cli
