#pragma once

#include "reshard/io/storage.h"

namespace reshard {

/// Returns the local file system, which lives as long as the program.
Storage& local_storage();

}  // namespace reshard
