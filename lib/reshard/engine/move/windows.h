#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "reshard/io/storage.h"

namespace reshard {

/// Windows begin and end at multiples of kLargePageBytes.
inline constexpr std::uint64_t kLargestWindowBytes = std::uint64_t{16} << 20;
/// For a block of more files each window is small, and costs more in page tables than it saves.
inline constexpr std::size_t kMostViews = 16;
/// Of all threads together. Each keeps a file open, and the usual limit is 1024.
inline constexpr std::size_t kMostWindows = 128;

/// One thread's views of the files that it reads: mapped windows, kept for the blocks to come. All windows together
/// take at most `max_bytes` of memory. They are as large as it turns out to pay: where a thread goes from file to file,
/// much of a large one would have to make room unseen. For less than `least_view_bytes` no window is made.
class Windows {
 public:
  Windows(std::uint64_t max_bytes, std::uint64_t least_view_bytes, std::size_t max_windows = kMostWindows)
      : max_bytes_(max_bytes), least_view_bytes_(least_view_bytes), max_windows_(max_windows) {}

  /// Whether there may be any view at all.
  bool can_view() const { return max_bytes_ > 0; }

  /// From now on views made before may go away.
  void start_block() { ++block_; }

  /// The range of the file, valid until start_block; `views` of about this size are wanted for the block. \returns an
  /// empty span where there is no room for it, or the file cannot be mapped.
  std::span<const std::byte> view(const std::shared_ptr<Source>& file, std::uint64_t offset_bytes,
                                  std::uint64_t size_bytes, std::size_t views);

  /// What was seen of the block's views was the files'.
  /// \throws Error kIo.
  void validate_whole() const;

 private:
  struct Window {
    std::shared_ptr<Source> file;  // open as long as the range lives
    std::unique_ptr<MappedRange> range;
    std::uint64_t block;  // that used it last
    std::uint64_t seen_bytes;

    std::uint64_t charged_bytes() const;
  };

  bool make_room(std::uint64_t bytes);
  void learn_from(const Window& window);

  std::uint64_t max_bytes_;
  std::uint64_t least_view_bytes_;
  std::size_t max_windows_;
  std::uint64_t window_bytes_ = kLargestWindowBytes;  // that is made where a view needs less
  std::uint64_t charged_bytes_ = 0;
  std::uint64_t block_ = 0;
  std::vector<Window> windows_;
};

}  // namespace reshard
