#include "reshard/engine/write_back.h"

#include <algorithm>

namespace reshard {

WriteBack::WriteBack(std::size_t files)
    : start_bytes_(std::clamp(kUnstartedBytes / std::max<std::size_t>(1, files), kLeastStartBytes, kMostStartBytes)),
      unstarted_bytes_(files) {}

void WriteBack::wrote(std::uint32_t file, const std::shared_ptr<Sink>& sink, std::uint64_t bytes) {
  if ((unstarted_bytes_[file] += bytes) < start_bytes_) return;
  const std::uint64_t unstarted = unstarted_bytes_[file].exchange(0);
  if (unstarted == 0) return;  // another thread was faster
  sink->start_writeback();
  std::unique_lock lock(mutex_);
  started_.push_back({sink, unstarted});
  on_the_way_bytes_ += unstarted;
  while (on_the_way_bytes_ > kOnTheWayBytes) {
    const Started oldest = std::move(started_.front());
    started_.pop_front();
    on_the_way_bytes_ -= oldest.bytes;
    lock.unlock();
    oldest.sink->wait_for_writeback();
    lock.lock();
  }
}

void WriteBack::clear() {
  const std::lock_guard lock(mutex_);
  started_.clear();
  on_the_way_bytes_ = 0;
}

}  // namespace reshard
