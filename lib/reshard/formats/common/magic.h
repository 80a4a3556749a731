#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "reshard/io/files.h"

namespace reshard {

/// The first `most` bytes of a file, or all it has.
std::string first_bytes(const Source& source, std::size_t most);

/// Names what stands where a file of tensors should, if it is well known.
/// \throws Error kBadInput if `start` begins a git-lfs pointer or an HTML page; kUnsupported if it begins a file of
/// another format for tensors.
void refuse_foreign(std::string_view start, const std::filesystem::path& path);

}  // namespace reshard
