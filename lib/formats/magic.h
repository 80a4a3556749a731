#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "reshard/base/storage.h"

namespace reshard {

/// The first `most` bytes of a file, or all it has.
std::string first_bytes(const Source& source, std::size_t most);

/// Names the two things that most often stand where a tensor file should.
/// \throws Error kBadInput if `start` begins a git-lfs pointer or an HTML page.
void refuse_pointer_or_page(std::string_view start, const std::filesystem::path& path);

}  // namespace reshard
