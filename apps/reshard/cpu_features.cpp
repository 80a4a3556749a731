#include "cpu_features.h"

#include <string_view>

#include "cpu_feature_list.h"

namespace reshard::cli {
namespace {

#define RESHARD_TEXT(macro) #macro

/// A compiler defines the macros of the extensions that it uses as 1; the text of another macro is its own name.
consteval CpuFeatures compiled_for() {
  [[maybe_unused]] int i = 0;
  CpuFeatures features = 0;
#define RESHARD_ADD(name, macro, has)                                                \
  if (std::string_view(RESHARD_TEXT(macro)) == "1") features |= CpuFeatures{1} << i; \
  ++i;
  RESHARD_CPU_FEATURES(RESHARD_ADD)
#undef RESHARD_ADD
  return features;
}

}  // namespace

constinit const CpuFeatures kCompiledFor = compiled_for();

std::vector<std::string> names_of(CpuFeatures features) {
  std::vector<std::string> names;
#define RESHARD_ADD(name, macro, has)         \
  if (features & 1) names.emplace_back(name); \
  features >>= 1;
  RESHARD_CPU_FEATURES(RESHARD_ADD)
#undef RESHARD_ADD
  return names;
}

}  // namespace reshard::cli
