#pragma once

#include "reshard/io/storage.h"

namespace reshard {

/// The local file system; lives as long as the program.
Storage& local_storage();

}  // namespace reshard
