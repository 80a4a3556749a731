#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace reshard {

/// Keeps the `capacity` most recently used files of a larger set open. A file still in use, by a thread's block or a
/// pending write-back, stays open beyond that until its last user releases it. Thread-safe.
template <typename File>
class FilePool {
 public:
  /// `last_word` is called with each file before it is closed, on the thread that releases it last. It must not throw.
  explicit FilePool(std::size_t capacity, std::function<void(File&)> last_word = {})
      : capacity_(capacity), last_word_(std::move(last_word)) {}

  /// Returns file `id`. Opens it with `open()` (returning a unique_ptr<File>) if it is not open.
  template <typename Open>
  std::shared_ptr<File> get(std::uint32_t id, Open&& open) {
    std::unique_lock lock(mutex_);
    const auto found = by_id_.find(id);
    if (found != by_id_.end()) {
      entries_.splice(entries_.begin(), entries_, found->second);
      return found->second->file;
    }
    std::shared_ptr<File> file(open().release(), [this](File* last) {
      const std::unique_ptr<File> closed(last);
      if (last_word_) last_word_(*closed);
    });
    entries_.push_front({id, file});
    by_id_[id] = entries_.begin();
    if (entries_.size() <= capacity_) return file;
    const std::shared_ptr<File> dropped = std::move(entries_.back().file);
    by_id_.erase(entries_.back().id);
    entries_.pop_back();
    lock.unlock();  // last_word_ may block
    return file;
  }

  /// Releases all files.
  void clear() {
    const std::lock_guard lock(mutex_);
    by_id_.clear();
    entries_.clear();
  }

 private:
  struct Entry {
    std::uint32_t id;
    std::shared_ptr<File> file;
  };

  std::size_t capacity_;
  std::function<void(File&)> last_word_;
  std::mutex mutex_;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<std::uint32_t, typename std::list<Entry>::iterator> by_id_;
};

}  // namespace reshard
