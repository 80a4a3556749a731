#pragma once

#include <filesystem>

namespace reshard {

/// Whether `path` is `folder` or is inside it, by name only. Both paths must be resolved, or relative to the same
/// directory.
bool lies_inside(const std::filesystem::path& path, const std::filesystem::path& folder);

}  // namespace reshard
