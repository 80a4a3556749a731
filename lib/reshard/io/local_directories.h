#pragma once

#include "reshard/io/directories.h"

namespace reshard {

/// Directories of the local file system. Thread-safe except for bits_for_new, which has to set the umask of the process
/// to read it.
Directories& local_directories();

/// Whether a failed system call with this errno is one that the file system (NFS and others have no flags of rename), an
/// old kernel or the filter of a container (EPERM) does not support.
bool is_unsupported(int errno_value);

}  // namespace reshard
