#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "reshard/base/storage.h"

namespace reshard {

/// Brings what is written to disk while the run goes on, so that the flush at its end is short, and the memory that
/// waits for the disk bounded. Thread-safe.
class WriteBack {
 public:
  /// A file is begun to be written out for each so many bytes, or fewer where there are many files: all together keep
  /// at most kUnstartedBytes back, and each at least kLeastStartBytes, which a disk takes well.
  static constexpr std::uint64_t kMostStartBytes = std::uint64_t{8} << 20;
  static constexpr std::uint64_t kLeastStartBytes = std::uint64_t{256} << 10;
  static constexpr std::uint64_t kUnstartedBytes = std::uint64_t{256} << 20;
  /// Of what was begun, at most so many bytes are on their way.
  static constexpr std::uint64_t kOnTheWayBytes = std::uint64_t{1} << 30;

  explicit WriteBack(std::size_t files);

  /// Tells that `bytes` more were written to file `file`. May wait for the disk.
  void wrote(std::uint32_t file, const std::shared_ptr<Sink>& sink, std::uint64_t bytes);

  /// Lets go of all files.
  void clear();

 private:
  struct Started {
    std::shared_ptr<Sink> sink;
    std::uint64_t bytes;
  };

  std::uint64_t start_bytes_;
  std::vector<std::atomic<std::uint64_t>> unstarted_bytes_;  // of each file
  std::mutex mutex_;
  std::deque<Started> started_;  // the oldest first
  std::uint64_t on_the_way_bytes_ = 0;
};

}  // namespace reshard
