#pragma once

#include <cstdint>
#include <filesystem>

#include "reshard/io/files.h"

namespace reshard {

/// Where the central directory of a zip archive lies. Invariant: it ends inside the file.
struct ZipPlace {
  std::uint64_t begin = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t entries = 0;  // as claimed
};

/// Reads the records at the archive's end, with zip64.
/// \throws Error kBadInput if they are not there, contradict each other, or do not end with the file; kUnsupported for
///         an archive of several parts; kIo.
ZipPlace find_zip_directory(const Source& source, const std::filesystem::path& path);

}  // namespace reshard
