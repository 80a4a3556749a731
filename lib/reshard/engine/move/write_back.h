#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "reshard/io/storage.h"

namespace reshard {

/// Brings what is written to disk while the run goes on, so that the flush at its end is short, and the memory that
/// waits for the disk bounded. Thread-safe.
class WriteBack {
 public:
  /// A file is begun to be written out for each so many bytes, and for fewer where all files together have more than
  /// kUnstartedBytes that were not begun.
  static constexpr std::uint64_t kStartBytes = std::uint64_t{8} << 20;
  static constexpr std::uint64_t kUnstartedBytes = std::uint64_t{256} << 20;
  /// Of what was begun, at most so many bytes are on their way.
  static constexpr std::uint64_t kOnTheWayBytes = std::uint64_t{1} << 30;

  /// For so many files. At most `most_open` are kept open until what was begun of them is done.
  WriteBack(std::size_t files, std::size_t most_open) : most_open_(most_open), unstarted_(files) {}

  /// Tells that a range of file `file` was written. May wait for the disk.
  void wrote(std::uint32_t file, const std::shared_ptr<Sink>& sink, std::uint64_t offset_bytes,
             std::uint64_t size_bytes);

  /// Lets go of all files.
  void clear();

 private:
  /// What was written of a file: so many bytes in a range that may have holes.
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
  std::vector<Written> unstarted_;  // of each file
  std::deque<Started> started_;     // the oldest first
  std::uint64_t on_the_way_bytes_ = 0;
};

}  // namespace reshard
