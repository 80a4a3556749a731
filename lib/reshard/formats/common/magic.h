#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "reshard/io/files.h"

namespace reshard {

/// Returns the first `most` bytes of a file, or the whole file if it is shorter.
std::string first_bytes(const Source& source, std::size_t most);

/// Rejects well-known files that are not containers.
/// \throws Error kBadInput if `start` begins a git-lfs pointer or an HTML page; kUnsupported if it begins a file of
///         another tensor format.
void refuse_foreign(std::string_view start, const std::filesystem::path& path);

}  // namespace reshard
