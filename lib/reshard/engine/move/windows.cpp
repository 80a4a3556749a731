#include "reshard/engine/move/windows.h"

#include <algorithm>

namespace reshard {
namespace {

std::uint64_t large_pages_up(std::uint64_t bytes) {
  return (bytes + kLargePageBytes - 1) / kLargePageBytes * kLargePageBytes;
}

}  // namespace

/// A short file counts as a whole page, which also bounds the number of files that are open.
std::uint64_t Windows::Window::charged_bytes() const {
  return large_pages_up(range->bytes().size());
}

std::span<const std::byte> Windows::view(const std::shared_ptr<Source>& file, std::uint64_t offset_bytes,
                                         std::uint64_t size_bytes, std::size_t views) {
  for (Window& window : windows_)
    if (window.file == file && window.range->begin_bytes() <= offset_bytes &&
        offset_bytes + size_bytes <= window.range->end_bytes()) {
      window.block = block_;
      window.seen_bytes += size_bytes;
      return window.range->bytes().subspan(offset_bytes - window.range->begin_bytes(), size_bytes);
    }
  const std::uint64_t begin = offset_bytes / kLargePageBytes * kLargePageBytes;
  // Right behind a window that is still there: the file is read from front to back.
  if (std::any_of(windows_.begin(), windows_.end(),
                  [&](const Window& window) { return window.file == file && window.range->end_bytes() == begin; }))
    window_bytes_ = std::min(kLargestWindowBytes, window_bytes_ * 2);
  const std::uint64_t share = std::min(window_bytes_, max_bytes_ / std::max<std::size_t>(1, views));
  if (offset_bytes + size_bytes > file->size_bytes()) return {};  // it was cut: reading says so
  if (size_bytes < least_view_bytes_ || views > kMostViews || share < kLargePageBytes) return {};
  const std::uint64_t wanted =
      std::max(large_pages_up(offset_bytes + size_bytes) - begin, share / kLargePageBytes * kLargePageBytes);
  const std::uint64_t bytes = std::min(wanted, file->size_bytes() - begin);
  if (!make_room(large_pages_up(bytes))) return {};
  auto range = file->map(begin, bytes);
  if (!range) return {};
  windows_.push_back({file, std::move(range), block_, size_bytes});
  charged_bytes_ += windows_.back().charged_bytes();
  return windows_.back().range->bytes().subspan(offset_bytes - begin, size_bytes);
}

/// Lets go of windows that the block does not use, the one used longest ago first.
bool Windows::make_room(std::uint64_t bytes) {
  while (charged_bytes_ + bytes > max_bytes_ || windows_.size() >= max_windows_) {
    const auto oldest = std::min_element(windows_.begin(), windows_.end(),
                                         [](const Window& a, const Window& b) { return a.block < b.block; });
    if (oldest == windows_.end() || oldest->block == block_) return false;
    charged_bytes_ -= oldest->charged_bytes();
    learn_from(*oldest);
    windows_.erase(oldest);
  }
  return true;
}

/// A window goes that was seen to half at most: smaller ones would have done.
void Windows::learn_from(const Window& window) {
  const std::uint64_t mapped = window.range->bytes().size();
  if (window.seen_bytes <= mapped / 2) window_bytes_ = std::max(kLargePageBytes, window_bytes_ / 2);
}

void Windows::validate_whole() const {
  for (const Window& window : windows_)
    if (window.block == block_) window.range->validate_whole();
}

}  // namespace reshard
