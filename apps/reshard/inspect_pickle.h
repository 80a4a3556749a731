#pragma once

#include <string>

#include "reshard/io/files.h"

namespace reshard::cli {

/// inspect --pickle: prints the classes and functions of the pickles of a file, or of all files in a directory.
/// \throws Error like read_torch_file for the first file that cannot be read or runs code, after the report; kBadInput if
///         there is no pickle.
void inspect_pickles(Files& files, const std::string& path, bool json, bool quiet);

}  // namespace reshard::cli
