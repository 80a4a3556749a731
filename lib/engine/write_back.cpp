#include "reshard/engine/write_back.h"

namespace reshard {

void WriteBack::wrote(std::uint32_t file, const std::shared_ptr<Sink>& sink, std::uint64_t bytes) {
  if ((unstarted_bytes_[file] += bytes) < kStartBytes) return;
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

}  // namespace reshard
