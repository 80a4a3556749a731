#pragma once

#include <span>
#include <string_view>

namespace reshard {

/// One file of lib/reshard/specs/families, compiled in by lib/cmake/EmbedFamilies.cmake.
struct BuiltinFamily {
  std::string_view name;
  std::string_view json;
};

extern const std::span<const BuiltinFamily> kBuiltinFamilies;

}  // namespace reshard
