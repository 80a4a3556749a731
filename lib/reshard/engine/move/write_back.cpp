#include "reshard/engine/move/write_back.h"

#include <algorithm>
#include <utility>

namespace reshard {

void WriteBack::wrote(std::uint32_t file, const std::shared_ptr<Sink>& sink, std::uint64_t offset_bytes,
                      std::uint64_t size_bytes) {
  std::unique_lock lock(mutex_);
  Written& unstarted = unstarted_[file];
  if (unstarted.bytes == 0) unstarted = {offset_bytes, offset_bytes, 0};
  unstarted.begin_bytes = std::min(unstarted.begin_bytes, offset_bytes);
  unstarted.end_bytes = std::max(unstarted.end_bytes, offset_bytes + size_bytes);
  unstarted.bytes += size_bytes;
  all_unstarted_bytes_ += size_bytes;
  if (unstarted.bytes < kStartBytes && all_unstarted_bytes_ <= kUnstartedBytes) return;
  const Written written = std::exchange(unstarted, {});
  all_unstarted_bytes_ -= written.bytes;
  started_.push_back({sink, written});
  on_the_way_bytes_ += written.bytes;
  std::vector<Started> oldest;
  while (on_the_way_bytes_ > kOnTheWayBytes || started_.size() > most_open_) {
    on_the_way_bytes_ -= started_.front().written.bytes;
    oldest.push_back(std::move(started_.front()));
    started_.pop_front();
  }
  lock.unlock();  // write-back and the last word of a file may block
  sink->start_writeback(written.begin_bytes, written.end_bytes - written.begin_bytes);
  for (const Started& began : oldest)
    began.sink->wait_for_writeback(began.written.begin_bytes, began.written.end_bytes - began.written.begin_bytes);
}

void WriteBack::clear() {
  std::deque<Started> started;
  const std::lock_guard lock(mutex_);
  started.swap(started_);
  on_the_way_bytes_ = 0;
}

}  // namespace reshard
