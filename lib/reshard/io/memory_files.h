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
  /// `path` is for errors.
  explicit MemorySource(std::string content, std::filesystem::path path = "memory");
  MemorySource(std::shared_ptr<const std::string> content, std::filesystem::path path);

  std::uint64_t size_bytes() const override { return content_->size(); }
  /// \throws Error kIo past the end, as for a local file that was cut.
  void read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const override;

 private:
  std::shared_ptr<const std::string> content_;
  std::filesystem::path path_;
};

/// Files in memory, for tests, fuzzers, and callers that have the bytes already. Paths are compared by their text, once
/// "." and ".." are resolved in it; there is no working directory and there are no links. Safe to use from several
/// threads at once.
class MemoryFiles final : public Files {
 public:
  /// Adds a file, or replaces it; sources that are open keep the content they were opened with. The directories above
  /// it exist from then on.
  /// \throws Error kUsage if the path is a directory, or passes through a file.
  void write(const std::filesystem::path& path, std::string content);
  /// Adds a directory, which may stay empty, and those above it.
  /// \throws Error kUsage if the path is or passes through a file.
  void make_directory(const std::filesystem::path& path);
  /// Removes a file, or a directory with all that is in it. \returns whether there was one.
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
    std::uint64_t version;  // no two writes have the same
  };

  FileKind find(const std::string& key) const;
  void add_directories(std::string key);

  mutable std::mutex mutex_;  // of all below
  std::map<std::string, File> files_;
  std::set<std::string> directories_{"", "/"};
  std::uint64_t writes_ = 0;
};

}  // namespace reshard
