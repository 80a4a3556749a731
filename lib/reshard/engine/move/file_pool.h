#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace reshard {

/// Keeps at most `capacity` files of a larger set open, the ones used last. A file in use (by a thread's block, a
/// write-back on its way) stays alive until its last user lets go, beside those. Thread-safe.
template <typename File>
class FilePool {
 public:
  /// `last_word` is called with each file before it is closed, in whichever thread let go of it last; it does not
  /// throw.
  explicit FilePool(std::size_t capacity, std::function<void(File&)> last_word = {})
      : capacity_(capacity), last_word_(std::move(last_word)) {}

  /// File `id`, opened with `open()` (returning a unique_ptr<File>) if it is not open already.
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
    lock.unlock();  // the last word may take its time
    return file;
  }

  /// Lets go of all.
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
