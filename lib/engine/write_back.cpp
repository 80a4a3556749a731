#include "reshard/engine/write_back.h"

namespace reshard {

void WriteBack::wrote(std::uint32_t file, const std::shared_ptr<Sink>& sink, std::uint64_t bytes) {
  const std::uint64_t of_file = unstarted_bytes_[file] += bytes;
  const std::uint64_t of_all = all_unstarted_bytes_ += bytes;
  if (of_file < kStartBytes && of_all <= kUnstartedBytes) return;
  const std::uint64_t unstarted = unstarted_bytes_[file].exchange(0);
  if (unstarted == 0) return;  // another thread was faster
  all_unstarted_bytes_ -= unstarted;
  sink->start_writeback();
  std::unique_lock lock(mutex_);
  started_.push_back({sink, unstarted});
  on_the_way_bytes_ += unstarted;
  while (on_the_way_bytes_ > kOnTheWayBytes || started_.size() > most_open_) {
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
