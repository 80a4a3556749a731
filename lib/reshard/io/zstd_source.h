#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "reshard/io/files.h"

namespace reshard {

/// A range of a file that is one zstd frame (RFC 8878).
struct ZstdFrame {
  std::uint64_t offset_bytes = 0;
  std::uint64_t length_bytes = 0;

  friend bool operator==(const ZstdFrame&, const ZstdFrame&) = default;
};

/// Windows larger than this are refused: each decoder has one in memory. Up to level 19, zstd makes 8 MiB.
inline constexpr int kMaxZstdWindowLog = 24;

/// What a frame decodes to, as bytes to read. Reading forward decodes on; reading backwards begins anew. Of all frames
/// together, a few decoders are kept.
/// \param file        the compressed file, of which `frame` is a range.
/// \param size_bytes  of what it decodes to.
/// \param path        of the file, for errors.
/// read_at also throws Error kBadInput if the frame is damaged; kUnsupported if its window is too large.
std::unique_ptr<Source> open_zstd(std::unique_ptr<Source> file, const ZstdFrame& frame, std::uint64_t size_bytes,
                                  const std::filesystem::path& path);

/// The size of what a frame decodes to, and its ends.
struct ZstdEnds {
  std::uint64_t size_bytes = 0;
  std::vector<std::byte> head;  // the first `end_bytes`, or all there are
  std::vector<std::byte> tail;  // the last ones, or all there are
};

/// Decodes all of a frame, in bounded memory.
/// \throws Error kBadInput if it is damaged, decodes to more than `max_bytes`, or ends before its range; kUnsupported
///         if its window is too large, or this build has no libzstd; kIo.
ZstdEnds read_zstd_ends(const Source& file, const ZstdFrame& frame, std::size_t end_bytes, std::uint64_t max_bytes,
                        const std::filesystem::path& path);

}  // namespace reshard
