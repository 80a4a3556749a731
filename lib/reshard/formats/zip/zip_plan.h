#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/formats/common/container.h"

namespace reshard {

/// Lays out a zip file of stored entries (PKWARE's APPNOTE 6.3): local headers with sizes and CRCs in place, a central
/// directory at the end, zip64 records exactly where a number does not fit its field. Payloads begin at multiples of 64
/// bytes, by an extra field in the local header as torch makes it (caffe2/serialize/inline_container.cc).
class ZipPlan {
 public:
  /// Adds an entry whose bytes somebody else writes. \returns where they begin.
  std::uint64_t add(std::string name, std::uint64_t size_bytes, std::uint32_t crc);
  /// Adds an entry of known content.
  void add(std::string name, const std::string& content);
  /// Adds the central directory. \returns the bytes of the file besides the payloads of the first kind, ascending.
  std::vector<FilePart> finish();
  /// Of the whole file, after finish().
  std::uint64_t size_bytes() const { return end_; }

 private:
  struct Entry {
    std::string name;
    std::uint64_t size_bytes;
    std::uint32_t crc;
    std::uint64_t header_offset;
  };

  void add_header(Entry entry);
  void append(const std::string& bytes);

  std::vector<Entry> entries_;
  std::vector<FilePart> parts_;
  std::uint64_t end_ = 0;
};

}  // namespace reshard
