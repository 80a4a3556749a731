#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace reshard {

/// Keeps at most `capacity` files of a larger set open, the ones used last. A file in use stays alive until its last
/// user lets go, so that the number of open files is at most capacity + threads. Thread-safe.
template <typename File>
class FilePool {
 public:
  explicit FilePool(std::size_t capacity) : capacity_(capacity) {}

  /// File `id`, opened with `open()` (returning a unique_ptr<File>) if it is not open already.
  template <typename Open>
  std::shared_ptr<File> get(std::uint32_t id, Open&& open) {
    const std::lock_guard lock(mutex_);
    const auto found = by_id_.find(id);
    if (found != by_id_.end()) {
      entries_.splice(entries_.begin(), entries_, found->second);
      return found->second->file;
    }
    std::shared_ptr<File> file = open();
    entries_.push_front({id, file});
    by_id_[id] = entries_.begin();
    if (entries_.size() > capacity_) {
      by_id_.erase(entries_.back().id);
      entries_.pop_back();
    }
    return file;
  }

 private:
  struct Entry {
    std::uint32_t id;
    std::shared_ptr<File> file;
  };

  std::size_t capacity_;
  std::mutex mutex_;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<std::uint32_t, typename std::list<Entry>::iterator> by_id_;
};

}  // namespace reshard
