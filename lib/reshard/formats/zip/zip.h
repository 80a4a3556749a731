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
  std::uint64_t offset_bytes = 0;  // offset of its content, from the start of the file
  std::uint64_t size_bytes = 0;    // size of its content, as stored in the file
  std::uint32_t crc32 = 0;         // as recorded in the archive; torch may leave it 0
  bool compressed = false;         // the content cannot be read
};

/// Entries of an archive, in the order of its central directory. Invariant, validated by `read_zip`: names are unique
/// and free of control characters. The entries are inside the file, and overlap neither each other nor the directory.
class ZipDirectory {
 public:
  explicit ZipDirectory(std::vector<ZipEntry> entries);

  const std::vector<ZipEntry>& entries() const { return entries_; }
  /// Returns the entry with this name, or nullptr.
  const ZipEntry* find(std::string_view name) const;

 private:
  std::vector<ZipEntry> entries_;
  std::vector<std::uint32_t> by_name_;
};

/// Reads the central directory and the local header of every entry (PKWARE's APPNOTE.TXT 6.3.10, with zip64), but no
/// contents. Rejects entries whose two headers differ, because readers would disagree on them.
/// \throws Error kBadInput, naming the byte if possible; kUnsupported if the archive is encrypted or split over several
///         disks; kIo.
/// Takes O(n log n) time in the number of entries.
ZipDirectory read_zip(const Source& source, const std::filesystem::path& path);

}  // namespace reshard
