#pragma once

#include <span>
#include <string_view>

namespace reshard {

/// A JSON file that lib/cmake/EmbedJson.cmake compiles into the library.
struct BuiltinFile {
  std::string_view name;
  std::string_view json;
};

extern const std::span<const BuiltinFile> kBuiltinFamilies;       // lib/reshard/specs/families
extern const std::span<const BuiltinFile> kBuiltinQuantizations;  // lib/reshard/specs/quantizations
extern const std::span<const BuiltinFile> kBuiltinSchemes;        // lib/reshard/specs/schemes

}  // namespace reshard
