#pragma once

#include <filesystem>

#include "json_report.h"

namespace reshard::cli {

/// The file system of a directory, or of the directory of a file, and which operations work on it. Tries them in a new
/// subdirectory, which it deletes. "error" says why the path cannot be examined or written to.
Document path_facts(const std::filesystem::path& path);

}  // namespace reshard::cli
