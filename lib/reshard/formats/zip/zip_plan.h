#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/formats/common/container.h"

namespace reshard {

/// Plans a zip file of uncompressed entries (PKWARE's APPNOTE 6.3): local headers with sizes and CRCs, a central
/// directory at the end, and zip64 records only for numbers that do not fit their fields. Contents begin at multiples
/// of 64 bytes: the local headers are padded with an extra field, as in torch (caffe2/serialize/inline_container.cc).
class ZipPlan {
 public:
  /// Adds an entry whose content the caller writes. \returns the offset of the content.
  std::uint64_t add(std::string name, std::uint64_t size_bytes, std::uint32_t crc);
  /// Adds an entry with known content.
  void add(std::string name, const std::string& content);
  /// Adds the central directory. \returns all bytes of the file except contents that the caller writes, ascending.
  std::vector<FilePart> finish();
  /// Size of the whole file. Valid after finish().
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
