#pragma once

#include <cstdint>
#include <filesystem>

#include "reshard/base/error.h"
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

/// Files::resolve of the local file system.
std::filesystem::path resolved_path(const std::filesystem::path& path);

/// Calls `action`; what std::filesystem throws in it (a loop of links, a directory that may not be read, a name too
/// long) becomes an Error kIo. The entry points of the library go through it.
template <typename Action>
auto with_file_system_errors(Action&& action) {
  try {
    return action();
  } catch (const std::filesystem::filesystem_error& error) {
    throw system_error(error.code().value(), "cannot look at it", error.path1());
  }
}

}  // namespace reshard
