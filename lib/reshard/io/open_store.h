#pragma once

#include <map>
#include <string_view>

#include "reshard/io/storage.h"

namespace reshard {

/// Returns the scheme of a path such as s3://bucket/model or s3:/bucket/model; empty for a local path.
std::string_view scheme_of(const std::filesystem::path& path);

/// Returns the storage for outputs at `path`: the local file system.
/// \throws Error kUnsupported if `path` has a scheme; the hint says how to copy between there and a local directory.
Storage& open_storage(const std::filesystem::path& path);

/// The error for a path at which nothing exists. The hint says how to fetch a model of the Hugging Face Hub if the path
/// has the form of its name.
Error nothing_at(Files& files, const std::filesystem::path& path);

/// Files of all stores: passes each call on to the store that the path's scheme names, or to open_storage. Safe to use
/// from several threads at once.
class AllFiles final : public Files {
 public:
  using ByScheme = std::map<std::string, Files*, std::less<>>;

  explicit AllFiles(ByScheme stores) : stores_(std::move(stores)) {}  // borrowed

  std::unique_ptr<Source> open(const std::filesystem::path& path) override { return store_of(path).open(path); }
  std::vector<DirectoryEntry> list(const std::filesystem::path& path) override { return store_of(path).list(path); }
  FileKind kind_of(const std::filesystem::path& path) override { return store_of(path).kind_of(path); }
  FileStamp stamp(const std::filesystem::path& path) override { return store_of(path).stamp(path); }
  FileStamp lasting_stamp(const std::filesystem::path& path) override { return store_of(path).lasting_stamp(path); }
  std::optional<std::int64_t> modified_ns(const std::filesystem::path& path) override {
    return store_of(path).modified_ns(path);
  }
  std::uint64_t size_bytes(const std::filesystem::path& path) override { return store_of(path).size_bytes(path); }
  std::filesystem::path absolute(const std::filesystem::path& path) override { return store_of(path).absolute(path); }
  std::filesystem::path resolve(const std::filesystem::path& path) override { return store_of(path).resolve(path); }
  bool is_same(const std::filesystem::path& a, const std::filesystem::path& b) override {
    return &store_of(a) == &store_of(b) && store_of(a).is_same(a, b);
  }

 private:
  Files& store_of(const std::filesystem::path& path) const;

  ByScheme stores_;
};

/// The stores of this program; lives as long as the program.
Files& all_files();

/// Where inputs are read, and where outputs are written. Borrows both. To find out whether an output is an input, its
/// path is looked up among the sources, too.
class Stores {
 public:
  Stores() : Stores(all_files(), open_storage({})) {}
  Stores(Storage& both) : Stores(both, both) {}  // implicit
  Stores(Files& sources, Storage& target) : sources_(&sources), target_(&target) {}

  Files& sources() const { return *sources_; }
  Storage& target() const { return *target_; }

 private:
  Files* sources_;
  Storage* target_;
};

}  // namespace reshard
