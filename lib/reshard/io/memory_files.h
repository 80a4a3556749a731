#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "reshard/io/files.h"

namespace reshard {

/// A file in memory.
class MemorySource final : public Source {
 public:
  /// `path` is used in errors only.
  explicit MemorySource(std::string content, std::filesystem::path path = "memory");
  MemorySource(std::shared_ptr<const std::string> content, std::filesystem::path path);

  std::uint64_t size_bytes() const override { return content_->size(); }
  /// \throws Error kIo for bytes past the end, like a truncated local file.
  void read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const override;

 private:
  std::shared_ptr<const std::string> content_;
  std::filesystem::path path_;
};

/// Files in memory, for tests, fuzzers, and callers that already have the bytes. Paths are compared by their text after
/// "." and ".." are resolved. There is no working directory, and there are no links. Thread-safe.
class MemoryFiles final : public Files {
 public:
  /// Adds or replaces a file, and adds its parent directories. Open sources keep the content they were opened with.
  /// \throws Error kUsage if the path is a directory, or a parent is a file.
  void write(const std::filesystem::path& path, std::string content);
  /// Adds a directory, which may stay empty, and its parents.
  /// \throws Error kUsage if the path or a parent is a file.
  void make_directory(const std::filesystem::path& path);
  /// Removes a file, or a directory and its contents. \returns whether it existed.
  bool remove(const std::filesystem::path& path);

  std::unique_ptr<Source> open(const std::filesystem::path& path) override;
  std::vector<DirectoryEntry> list(const std::filesystem::path& directory) override;
  FileKind kind_of(const std::filesystem::path& path) override;
  FileStamp stamp(const std::filesystem::path& path) override;
  std::filesystem::path absolute(const std::filesystem::path& path) override { return path; }
  std::filesystem::path resolve(const std::filesystem::path& path) override;

 private:
  struct File {
    std::shared_ptr<const std::string> content;
    std::uint64_t version;  // unique for each write
  };

  FileKind find(const std::string& key) const;
  void add_directories(std::string key);

  mutable std::mutex mutex_;  // guards the members below
  std::map<std::string, File> files_;
  std::set<std::string> directories_{"", "/"};
  std::uint64_t writes_ = 0;
};

}  // namespace reshard
