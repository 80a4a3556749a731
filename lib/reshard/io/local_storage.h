#pragma once

#include <cstdint>

#include "reshard/io/storage.h"

namespace reshard {

/// How the local file system is read and written.
enum class IoMode : std::uint8_t { kAuto, kMmap, kRead, kDirect };
struct IoModeRow {
  IoMode mode;
  const char* name;
  const char* meaning;
};
inline constexpr IoModeRow kIoModes[] = {
    {IoMode::kAuto, "auto", "what was fastest where it was measured: read"},
    {IoMode::kMmap, "mmap", "map what is read; pays for files in memory that lie in large pages"},
    {IoMode::kRead, "read",
     "large reads and writes; a copy in the kernel where blocks can be shared, or a server copies"},
    {IoMode::kDirect, "direct", "past the page cache, where the file system can"},
};

/// The local file system in one of its modes; lives as long as the program. What is mapped comes under MappedRange.
Storage& local_storage(IoMode mode = IoMode::kAuto);

}  // namespace reshard
