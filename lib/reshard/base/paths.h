#pragma once

#include <filesystem>

namespace reshard {

/// Whether `path` is `folder` or lies below it, by names alone: both resolved, or both relative to the same directory.
bool lies_inside(const std::filesystem::path& path, const std::filesystem::path& folder);

}  // namespace reshard
