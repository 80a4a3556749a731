#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace reshard {

/// Pages of this size are mapped as one where file system and machine can; of x86-64, and of arm64 with pages of 4 KiB.
inline constexpr std::uint64_t kLargePageBytes = std::uint64_t{2} << 20;

/// A range of a file in memory, to be read. What a mapped file can no longer give (another process has cut it, the disk
/// fails) would end the program with SIGBUS: the first range made installs a handler that puts zeros in such a place,
/// and validate_whole tells. Faults elsewhere go on to the handler that was there before. The kernel's own accesses, as
/// in write(2) from a range, fail with EFAULT.
class MappedRange {
 public:
  /// Maps `size_bytes`, at least 1, of `fd` from `begin_bytes`, a multiple of the page size, with its pages present if
  /// they can be had. `fd` is borrowed. \returns null if the system refuses, or too many ranges exist.
  static std::unique_ptr<MappedRange> make(int fd, std::filesystem::path path, std::uint64_t begin_bytes,
                                           std::uint64_t size_bytes);
  ~MappedRange();
  MappedRange(const MappedRange&) = delete;
  MappedRange& operator=(const MappedRange&) = delete;

  std::uint64_t begin_bytes() const { return begin_bytes_; }
  std::uint64_t end_bytes() const { return begin_bytes_ + bytes_.size(); }
  std::span<const std::byte> bytes() const { return bytes_; }

  /// Everything that was seen of the range so far was the file's.
  /// \throws Error kIo.
  void validate_whole() const;

 private:
  MappedRange(int fd, std::filesystem::path path, std::uint64_t begin_bytes, std::span<const std::byte> bytes,
              std::size_t slot)
      : fd_(fd), path_(std::move(path)), begin_bytes_(begin_bytes), bytes_(bytes), slot_(slot) {}

  int fd_;
  std::filesystem::path path_;
  std::uint64_t begin_bytes_;
  std::span<const std::byte> bytes_;
  std::size_t slot_;
};

}  // namespace reshard
