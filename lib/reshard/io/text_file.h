#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "reshard/base/json.h"

namespace reshard {

/// The whole content of a small text file.
/// \throws Error kBadInput if it is missing or larger than `cap_bytes`.
std::string read_text_file(const std::filesystem::path& path, std::uint64_t cap_bytes);

/// read_text_file and parse_json in one; `cap_bytes` bounds the file.
Json read_json_file(const std::filesystem::path& path, std::uint64_t cap_bytes = std::uint64_t{4} << 20,
                    JsonDialect dialect = JsonDialect::kStrict);

}  // namespace reshard
