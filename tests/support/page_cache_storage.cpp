#include "support/page_cache_storage.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "reshard/io/local_storage.h"

namespace reshard::test {

class CachedFile {
 public:
  CachedFile(const std::filesystem::path& path, std::uint64_t page_bytes, bool flushes_at_close)
      : source_(local_storage().open(path)),
        sink_(local_storage().reopen(path)),
        page_bytes_(page_bytes),
        flushes_at_close_(flushes_at_close) {}
  CachedFile(const CachedFile&) = delete;
  CachedFile& operator=(const CachedFile&) = delete;
  ~CachedFile() {
    if (flushes_at_close_) flush();
  }

  void write_at(std::uint64_t offset_bytes, std::span<const std::byte> bytes) {
    const std::lock_guard lock(mutex_);
    while (!bytes.empty()) {
      const std::uint64_t begin = offset_bytes / page_bytes_ * page_bytes_;
      std::vector<std::byte>& page = page_at(begin);
      const auto here = bytes.first(std::min<std::uint64_t>(bytes.size(), begin + page.size() - offset_bytes));
      std::memcpy(page.data() + (offset_bytes - begin), here.data(), here.size());
      offset_bytes += here.size();
      bytes = bytes.subspan(here.size());
    }
  }

  void flush() {
    const std::lock_guard lock(mutex_);
    for (const auto& [begin, page] : pages_) sink_->write_at(begin, page);
  }

  void lose() {
    const std::lock_guard lock(mutex_);
    pages_.clear();
  }

 private:
  std::vector<std::byte>& page_at(std::uint64_t begin) {
    const auto [found, is_new] = pages_.try_emplace(begin);
    if (is_new) {
      found->second.resize(std::min(page_bytes_, source_->size_bytes() - begin));
      source_->read_at(begin, found->second);
    }
    return found->second;
  }

  std::unique_ptr<Source> source_;
  std::unique_ptr<Sink> sink_;
  std::uint64_t page_bytes_;
  bool flushes_at_close_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::vector<std::byte>> pages_;  // by where they begin
};

namespace {

class CachedSink final : public Sink {
 public:
  CachedSink(const PageCacheStorage& storage, std::shared_ptr<CachedFile> file)
      : storage_(storage), file_(std::move(file)) {}
  void write_at(std::uint64_t offset_bytes, std::span<const std::byte> bytes) override {
    if (storage_.before) storage_.before();
    file_->write_at(offset_bytes, bytes);
  }
  void finish() override {
    if (!storage_.keeps_closed) file_->flush();
  }
  void sync() override {
    if (storage_.before) storage_.before();
    if (storage_.loses && storage_.loses()) {
      file_->lose();
      throw Error(ErrorKind::kIo, "made to be lost");
    }
    file_->flush();
  }

 private:
  const PageCacheStorage& storage_;
  std::shared_ptr<CachedFile> file_;
};

}  // namespace

std::unique_ptr<Source> PageCacheStorage::open(const std::filesystem::path& path) {
  return local_storage().open(path);
}

std::unique_ptr<Sink> PageCacheStorage::create(const std::filesystem::path& path, std::uint64_t size_bytes) {
  local_storage().create(path, size_bytes);
  return reopen(path);
}

std::unique_ptr<Sink> PageCacheStorage::reopen(const std::filesystem::path& path) {
  const std::lock_guard lock(mutex_);
  std::weak_ptr<CachedFile>& known = open_[path.string()];
  auto file = known.lock();
  if (!file) {
    known = file = std::make_shared<CachedFile>(path, page_bytes_, !keeps_closed);
    if (keeps_closed) kept_.push_back(file);
  }
  return std::make_unique<CachedSink>(*this, std::move(file));
}

Directories& PageCacheStorage::directories() {
  return local_storage().directories();
}
std::vector<DirectoryEntry> PageCacheStorage::list(const std::filesystem::path& directory) {
  return local_storage().list(directory);
}
FileKind PageCacheStorage::kind_of(const std::filesystem::path& path) {
  return local_storage().kind_of(path);
}
FileStamp PageCacheStorage::lasting_stamp(const std::filesystem::path& path) {
  return local_storage().lasting_stamp(path);
}
FileStamp PageCacheStorage::stamp(const std::filesystem::path& path) {
  return local_storage().stamp(path);
}
std::filesystem::path PageCacheStorage::absolute(const std::filesystem::path& path) {
  return local_storage().absolute(path);
}
std::filesystem::path PageCacheStorage::resolve(const std::filesystem::path& path) {
  return local_storage().resolve(path);
}

}  // namespace reshard::test
