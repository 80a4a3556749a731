#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "reshard/base/json_fwd.h"
#include "reshard/io/files.h"
#include "reshard/specs/family/family.h"

namespace reshard {

/// Parses a JSON value that was created in memory.
/// \throws Error kBadInput, naming the key, if `json` is not a family description.
Family parse_family(const Json& json, const std::filesystem::path& path);

/// Parses the text of a file.
/// \throws Error kBadInput with the line and the key.
Family parse_family_text(std::string text, const std::filesystem::path& path);

/// Reads a user's description, for `spec`.
/// \throws like parse_family_text.
std::shared_ptr<const Family> read_family(Files& files, const std::filesystem::path& path);

}  // namespace reshard
