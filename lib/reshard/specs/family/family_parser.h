#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "reshard/base/json_fwd.h"
#include "reshard/io/files.h"
#include "reshard/specs/family/family.h"

namespace reshard {

/// Of a JSON that was made in memory.
/// \throws Error kBadInput if `json` is not a family description, with the key that is wrong.
Family parse_family(const Json& json, const std::filesystem::path& path);

/// Of a file's text.
/// \throws Error kBadInput with the line and the key.
Family parse_family_text(std::string text, const std::filesystem::path& path);

/// A file that somebody wrote, for `spec`.
/// \throws as parse_family_text.
std::shared_ptr<const Family> read_family(Files& files, const std::filesystem::path& path);

}  // namespace reshard
