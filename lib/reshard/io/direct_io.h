#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace reshard {

/// Past the page cache only whole pages move, between places in the file and in memory that are multiples of this: what
/// file systems and disks ask for at most (open(2), O_DIRECT).
inline constexpr std::uint64_t kDirectPageBytes = 4096;
constexpr std::uint64_t direct_pages_up(std::uint64_t bytes) {
  return (bytes + kDirectPageBytes - 1) / kDirectPageBytes * kDirectPageBytes;
}

/// A file opened with O_DIRECT. Each thread copies through an aligned buffer of 1 MiB of its own, which it keeps. Safe
/// to use from several threads at once.
class DirectFile {
 public:
  /// The file of an open descriptor once more; `access` is O_RDONLY or O_WRONLY. \returns null where the file system
  /// has no such thing.
  static std::unique_ptr<DirectFile> open(int fd, int access);
  ~DirectFile();
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  /// Fills the beginning of `out` from any offset. \returns how many bytes it got; the rest, after an error or at the
  /// end of the file, has to be had in the ordinary way, which says what is wrong.
  std::uint64_t read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const;
  /// Writes the whole pages at the beginning of `bytes`; `offset_bytes` is a multiple of the page. \returns how many
  /// bytes it wrote.
  std::uint64_t write_at(std::uint64_t offset_bytes, std::span<const std::byte> bytes) const;

 private:
  explicit DirectFile(int fd) : fd_(fd) {}

  int fd_;
};

}  // namespace reshard
