#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "reshard/io/storage.h"

namespace reshard::test {

class CachedFile;

/// One machine of several that share a file system which does not keep their caches alike, at its worst: the first
/// write to a page reads it, and others see nothing of the file until it is flushed or closed, when all of each page
/// that was written to goes out, with what it held when it was read. A file that is opened anew is read anew.
class PageCacheStorage final : public Storage {
 public:
  explicit PageCacheStorage(std::uint64_t page_bytes) : page_bytes_(page_bytes) {}

  /// What is closed stays in the cache until it is flushed, and is lost with this object: the machine's power went.
  bool keeps_closed = false;
  /// Called before each write and flush.
  std::function<void()> before;
  /// Called before a file is flushed; where it says so, that fails, and what was to be flushed is lost.
  std::function<bool()> loses;

  std::unique_ptr<Source> open(const std::filesystem::path& path) override;
  std::unique_ptr<Sink> create(const std::filesystem::path& path, std::uint64_t size_bytes) override;
  std::unique_ptr<Sink> reopen(const std::filesystem::path& path) override;
  Directories& directories() override;
  std::vector<DirectoryEntry> list(const std::filesystem::path& directory) override;
  FileKind kind_of(const std::filesystem::path& path) override;
  FileStamp stamp(const std::filesystem::path& path) override;
  FileStamp lasting_stamp(const std::filesystem::path& path) override;
  std::filesystem::path absolute(const std::filesystem::path& path) override;
  std::filesystem::path resolve(const std::filesystem::path& path) override;

 private:
  std::uint64_t page_bytes_;
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<CachedFile>> open_;
  std::vector<std::shared_ptr<CachedFile>> kept_;
};

}  // namespace reshard::test
