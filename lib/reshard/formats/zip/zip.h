#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/io/files.h"

namespace reshard {

/// One entry of a zip archive.
struct ZipEntry {
  std::string name;
  std::uint64_t offset_bytes = 0;  // of its content, from the start of the file
  std::uint64_t size_bytes = 0;    // of its content, as it lies in the file
  std::uint32_t crc32 = 0;         // as the archive claims; torch may leave it 0
  bool compressed = false;         // nothing here can unpack it
};

/// What an archive holds, in the order of its central directory. Invariant, validated by `read_zip`: names are unique
/// and free of control characters, and the entries lie inside the file, none over another or over the directory.
class ZipDirectory {
 public:
  explicit ZipDirectory(std::vector<ZipEntry> entries);

  const std::vector<ZipEntry>& entries() const { return entries_; }
  /// The entry of this name, or nullptr.
  const ZipEntry* find(std::string_view name) const;

 private:
  std::vector<ZipEntry> entries_;
  std::vector<std::uint32_t> by_name_;
};

/// Reads the central directory and the local header of every entry (PKWARE's APPNOTE.TXT 6.3.10, with zip64), but none
/// of the contents. Where the two headers of an entry disagree, readers do too, so that is an error.
/// \throws Error kBadInput, naming the byte where possible; kUnsupported for what is encrypted or split over
///         several disks; kIo.
/// O(n log n) in the entries.
ZipDirectory read_zip(const Source& source, const std::filesystem::path& path);

}  // namespace reshard
