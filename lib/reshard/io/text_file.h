#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "reshard/base/json_fwd.h"
#include "reshard/io/files.h"

namespace reshard {

inline constexpr std::uint64_t kDefaultJsonCapBytes = std::uint64_t{4} << 20;

/// Reads a small text file completely.
/// \throws Error kBadInput if the file is missing or larger than `cap_bytes`.
std::string read_text_file(Files& files, const std::filesystem::path& path, std::uint64_t cap_bytes);

/// Reads and parses a JSON file of at most `cap_bytes`.
Json read_json_file(Files& files, const std::filesystem::path& path, std::uint64_t cap_bytes = kDefaultJsonCapBytes,
                    JsonDialect dialect = JsonDialect::kStrict);

}  // namespace reshard
