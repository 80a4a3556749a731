#include "reshard/formats/zip/zip_end.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "reshard/base/checked.h"
#include "reshard/formats/common/little_endian.h"

namespace reshard {
namespace {

constexpr std::uint32_t kEndSignature = 0x06054b50;
constexpr std::uint32_t kEnd64Signature = 0x06064b50;
constexpr std::uint32_t kLocatorSignature = 0x07064b50;
constexpr std::uint64_t kEndBytes = 22;  // without the comment
constexpr std::uint64_t kMaxCommentBytes = UINT16_MAX;
constexpr std::uint64_t kEnd64Bytes = 56;
constexpr std::uint64_t kLocatorBytes = 20;

class EndReader {
 public:
  EndReader(const Source& source, const std::filesystem::path& path)
      : source_(source), path_(path), file_bytes_(source.size_bytes()) {}

  /// Uses the last end record, like every other reader. It must end with the file.
  ZipPlace find() const {
    if (file_bytes_ < kEndBytes) throw bad("has too few bytes for a zip archive", 0);
    // Reads without a comment first: archives rarely have one, and a file may contain a hundred thousand archives.
    std::uint64_t tail_bytes = std::min(file_bytes_, kEndBytes + kLocatorBytes);
    std::string tail = read_bytes(file_bytes_ - tail_bytes, tail_bytes);
    if (load_le<std::uint32_t>(tail, tail_bytes - kEndBytes) != kEndSignature) {
      tail_bytes = std::min(file_bytes_, kEndBytes + kMaxCommentBytes + kLocatorBytes);
      tail = read_bytes(file_bytes_ - tail_bytes, tail_bytes);
    }
    const std::uint64_t tail_at = file_bytes_ - tail_bytes;
    std::uint64_t at = tail_bytes - kEndBytes;
    while (load_le<std::uint32_t>(tail, at) != kEndSignature) {
      if (at == 0 || at + kEndBytes + kMaxCommentBytes <= tail_bytes)
        throw bad("begins like a zip archive, but has no zip directory at its end", file_bytes_)
            .hint("the file is cut off; fetch it again");
      --at;
    }
    const std::string_view end = std::string_view(tail).substr(at);
    const std::uint64_t end_at = tail_at + at;
    if (end.size() != kEndBytes + load_le<std::uint16_t>(end, 20))
      throw bad("the end of the zip archive is not the end of the file", end_at)
          .hint("the file is cut off or has trailing data; fetch it again");

    const ZipPlace place{load_le<std::uint32_t>(end, 16), load_le<std::uint32_t>(end, 12),
                         load_le<std::uint16_t>(end, 10)};
    if (at >= kLocatorBytes) {
      const std::string_view locator = std::string_view(tail).substr(at - kLocatorBytes, kLocatorBytes);
      if (load_le<std::uint32_t>(locator, 0) == kLocatorSignature)
        return find64(place, end_at - kLocatorBytes, locator);
    }
    if (place.begin == kIn64_32 || place.size_bytes == kIn64_32)  // 65535 entries are valid without zip64
      throw bad("its end record points to a zip64 record that is not there", end_at);
    if (load_le<std::uint16_t>(end, 4) != 0 || load_le<std::uint16_t>(end, 6) != 0 ||
        load_le<std::uint16_t>(end, 8) != place.entries)
      throw another_disk(end_at);
    if (place.begin + place.size_bytes != end_at)
      throw bad(fmt::format("its zip directory claims bytes {} to {}, but must end at {}", place.begin,
                            place.begin + place.size_bytes, end_at),
                end_at);
    return place;
  }

  ZipPlace find64(const ZipPlace& small, std::uint64_t locator_at, std::string_view locator) const {
    const auto record_at = load_le<std::uint64_t>(locator, 8);
    if (load_le<std::uint32_t>(locator, 4) != 0 || load_le<std::uint32_t>(locator, 16) > 1)
      throw another_disk(locator_at);
    if (locator_at < kEnd64Bytes || record_at > locator_at - kEnd64Bytes)
      throw bad(fmt::format("its zip64 record claims to be at {}, where it does not fit", record_at), locator_at);
    const std::string record = read_bytes(record_at, kEnd64Bytes);
    const auto rest = checked_add(load_le<std::uint64_t>(record, 4), 12);
    if (load_le<std::uint32_t>(record, 0) != kEnd64Signature || rest != locator_at - record_at)
      throw bad("its zip64 record is invalid, or its length is not what it declares", record_at);
    const ZipPlace place{load_le<std::uint64_t>(record, 48), load_le<std::uint64_t>(record, 40),
                         load_le<std::uint64_t>(record, 32)};
    if (load_le<std::uint32_t>(record, 16) != 0 || load_le<std::uint32_t>(record, 20) != 0 ||
        load_le<std::uint64_t>(record, 24) != place.entries)
      throw another_disk(record_at);
    const auto disagree = [](std::uint64_t in_small, std::uint64_t full, std::uint64_t in_64) {
      return in_small != in_64 && in_small != full;
    };
    if (disagree(small.begin, place.begin, kIn64_32) || disagree(small.size_bytes, place.size_bytes, kIn64_32) ||
        disagree(small.entries, place.entries, kIn64_16))
      throw bad("its zip64 record and its end record disagree", record_at);
    if (checked_add(place.begin, place.size_bytes) != record_at)
      throw bad(fmt::format("its zip directory claims {} bytes from {}, but must end at {}", place.size_bytes,
                            place.begin, record_at),
                record_at);
    return place;
  }

 private:
  Error bad(std::string message, std::uint64_t at_byte) const {
    return Error(ErrorKind::kBadInput, std::move(message)).in(path_).at_byte(at_byte);
  }
  Error another_disk(std::uint64_t at_byte) const {
    return Error(ErrorKind::kUnsupported, "is one volume of a multi-volume zip archive").in(path_).at_byte(at_byte);
  }

  /// The range must be inside the file.
  std::string read_bytes(std::uint64_t begin, std::uint64_t size_bytes) const {
    std::string bytes(size_bytes, '\0');
    source_.read_at(begin, std::as_writable_bytes(std::span(bytes)));
    return bytes;
  }

  const Source& source_;
  const std::filesystem::path& path_;
  std::uint64_t file_bytes_;
};

}  // namespace

ZipPlace find_zip_directory(const Source& source, const std::filesystem::path& path) {
  return EndReader(source, path).find();
}

}  // namespace reshard
