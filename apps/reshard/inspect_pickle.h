#pragma once

#include <string>

#include "reshard/io/files.h"

namespace reshard::cli {

/// inspect --pickle: prints the classes and functions of the pickles of a file, or of all files in a directory.
/// \throws Error kBadInput if a file runs code when Python loads it, after the report of the others; also if there is no
///         pickle; like read_torch_file.
void inspect_pickles(Files& files, const std::string& path, bool json, bool quiet);

}  // namespace reshard::cli
