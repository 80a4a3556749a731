#pragma once

#include "reshard/io/directories.h"

namespace reshard {

/// Directories of the local file system. Thread-safe except for bits_for_new, which has to set the umask of the process
/// to read it.
Directories& local_directories();

}  // namespace reshard
