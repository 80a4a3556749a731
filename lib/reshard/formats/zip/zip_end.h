#pragma once

#include <cstdint>
#include <filesystem>

#include "reshard/io/files.h"

namespace reshard {

// Values of a field whose number is in the zip64 record or in the zip64 extra field.
inline constexpr std::uint16_t kIn64_16 = UINT16_MAX;
inline constexpr std::uint32_t kIn64_32 = UINT32_MAX;

/// Location of the central directory of a zip archive. Invariant: it ends inside the file.
struct ZipPlace {
  std::uint64_t begin = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t entries = 0;  // as recorded
};

/// Reads the end records of an archive, with zip64.
/// \throws Error kBadInput if they are missing, contradict each other, or do not end with the file; kUnsupported for an
///         archive with several parts; kIo.
ZipPlace find_zip_directory(const Source& source, const std::filesystem::path& path);

}  // namespace reshard
