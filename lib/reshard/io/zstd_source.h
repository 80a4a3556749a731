#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "reshard/io/files.h"

namespace reshard {

/// A range of a file that contains one zstd frame (RFC 8878).
struct ZstdFrame {
  std::uint64_t offset_bytes = 0;
  std::uint64_t length_bytes = 0;

  friend bool operator==(const ZstdFrame&, const ZstdFrame&) = default;
};

/// Larger windows are rejected: each decoder keeps one in memory. zstd uses 8 MiB up to level 19.
inline constexpr int kMaxZstdWindowLog = 24;

/// Returns a Source for the decompressed bytes of a frame. Reading forward continues decoding; reading backward starts
/// again from the beginning. A few idle decoders are kept for all frames together.
/// \param file        the compressed file that contains `frame`.
/// \param size_bytes  decompressed size.
/// \param path        path of the file, for errors.
/// read_at also throws Error kBadInput if the frame is damaged; kUnsupported if its window is too large.
std::unique_ptr<Source> open_zstd(std::unique_ptr<Source> file, const ZstdFrame& frame, std::uint64_t size_bytes,
                                  const std::filesystem::path& path);

/// Decompressed size of a frame, with its first and last bytes.
struct ZstdEnds {
  std::uint64_t size_bytes = 0;
  std::vector<std::byte> head;  // the first `end_bytes`, or all bytes if there are fewer
  std::vector<std::byte> tail;  // the last `end_bytes`, or all bytes if there are fewer
};

/// Decodes a whole frame in bounded memory.
/// \throws Error kBadInput if the frame is damaged, decodes to more than `max_bytes`, or ends before its range;
///         kUnsupported if its window is too large or this build has no libzstd; kIo.
ZstdEnds read_zstd_ends(const Source& file, const ZstdFrame& frame, std::size_t end_bytes, std::uint64_t max_bytes,
                        const std::filesystem::path& path);

}  // namespace reshard
