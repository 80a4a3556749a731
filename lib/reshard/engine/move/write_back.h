#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "reshard/io/storage.h"

namespace reshard {

/// Writes data back to disk during the run, which shortens the final flush and bounds the memory of dirty pages.
/// Thread-safe.
class WriteBack {
 public:
  /// Write-back of a file starts after this many bytes, or earlier if all files together have more than kUnstartedBytes
  /// not yet started.
  static constexpr std::uint64_t kStartBytes = std::uint64_t{8} << 20;
  static constexpr std::uint64_t kUnstartedBytes = std::uint64_t{256} << 20;
  /// Maximum bytes in pending write-backs.
  static constexpr std::uint64_t kOnTheWayBytes = std::uint64_t{1} << 30;

  /// For `files` files. Pending write-backs keep at most `most_open` files open.
  WriteBack(std::size_t files, std::size_t most_open) : most_open_(most_open), unstarted_(files) {}

  /// Records that a range of file `file` was written. May wait for the disk.
  void wrote(std::uint32_t file, const std::shared_ptr<Sink>& sink, std::uint64_t offset_bytes,
             std::uint64_t size_bytes);

  /// Releases all files.
  void clear();

 private:
  /// Bytes written to a file so far; the range may have holes.
  struct Written {
    std::uint64_t begin_bytes = 0;
    std::uint64_t end_bytes = 0;
    std::uint64_t bytes = 0;
  };
  struct Started {
    std::shared_ptr<Sink> sink;
    Written written;
  };

  std::size_t most_open_;
  std::mutex mutex_;
  std::uint64_t all_unstarted_bytes_ = 0;
  std::vector<Written> unstarted_;  // by file
  std::deque<Started> started_;     // oldest first
  std::uint64_t on_the_way_bytes_ = 0;
};

}  // namespace reshard
