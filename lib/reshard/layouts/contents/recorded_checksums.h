#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "reshard/io/files.h"
#include "reshard/layouts/map/tensor_map.h"

namespace reshard {

/// A range of a file with a recorded CRC-32.
struct ChecksummedRange {
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  std::uint32_t crc32 = 0;
};

/// Returns the members of the zip archives that torch.save wrote to a source file: the whole file, or the items in
/// SourceFile::archives. std::nullopt if the file is not an archive, is compressed, or does not record the CRC-32 of
/// every member (torch.serialization.set_crc32_options(False) leaves it 0). Reads headers only.
/// \throws Error as read_zip.
std::optional<std::vector<ChecksummedRange>> recorded_checksums(Files& files, const SourceFile& file);

}  // namespace reshard
