#pragma once

#include "reshard/io/directories.h"

namespace reshard {

/// Those of the local file system. Safe to use from several threads at once, but for bits_for_new: the umask is the
/// process's, and can only be read by setting it.
Directories& local_directories();

}  // namespace reshard
