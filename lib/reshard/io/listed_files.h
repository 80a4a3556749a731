#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reshard/io/files.h"

namespace reshard {

/// A cached view of another Files for one request: lists each directory once, and answers questions about its entries
/// from that list. Lists a directory at the first question about one of its entries, once it is known to be a
/// directory. Paths outside listed directories, such as the parents of the first directory, are looked up one at a
/// time.
///
/// Keeps some files open until they are stamped, so that a stamp is never newer than what is read after it.
///
/// For planning only. It must not outlive the request or see what the request writes: names that appear or vanish later
/// go unnoticed until they are opened.
class ListedFiles final : public Files {
 public:
  /// Borrows `files`, which must outlive this object.
  explicit ListedFiles(Files& files) : files_(files) {}

  std::unique_ptr<Source> open(const std::filesystem::path& path) override;
  std::vector<DirectoryEntry> list(const std::filesystem::path& directory) override;
  FileKind kind_of(const std::filesystem::path& path) override;
  FileStamp stamp(const std::filesystem::path& path) override;
  FileStamp lasting_stamp(const std::filesystem::path& path) override { return files_.lasting_stamp(path); }
  std::optional<std::int64_t> modified_ns(const std::filesystem::path& path) override {
    return files_.modified_ns(path);
  }
  std::uint64_t size_bytes(const std::filesystem::path& path) override { return files_.size_bytes(path); }
  std::filesystem::path absolute(const std::filesystem::path& path) override { return files_.absolute(path); }
  std::filesystem::path resolve(const std::filesystem::path& path) override;
  bool is_same(const std::filesystem::path& a, const std::filesystem::path& b) override;

 private:
  struct Listing {
    std::vector<DirectoryEntry> entries;
    std::optional<Error> error;      // why the directory cannot be listed
    std::optional<bool> searchable;  // whether entries can be looked up; unknown until one is
  };

  struct Opened {
    std::shared_ptr<const Source> source;  // null if it is not kept open
    std::uint64_t stamps = 0;              // how often the file was stamped
  };

  // Keys are absolute paths without "." and double slashes. Callers of these functions lock mutex_.
  void close_all();
  std::string key_of(const std::filesystem::path& path);
  Listing& listing_of(const std::string& key);
  bool is_searchable(const std::string& key, Listing& listing);
  const Listing* usable_listing(const std::string& key);
  FileKind find_kind(const std::filesystem::path& path);
  std::optional<FileKind> listed_kind(const std::string& key);
  std::filesystem::path find_resolved(const std::filesystem::path& path);

  Files& files_;
  std::mutex mutex_;                 // guards the members below
  std::optional<std::string> base_;  // of relative paths
  std::map<std::string, Listing> listings_;
  std::map<std::string, FileKind> kinds_;  // results of single lookups
  std::map<std::string, std::filesystem::path> resolved_;
  std::map<std::string, Opened> opened_;
  std::size_t open_ = 0;  // number of sources in opened_
};

}  // namespace reshard
