#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/engine/move/shared_pages.h"
#include "reshard/io/storage.h"

namespace reshard {

// Two machines that write to the same page of a file may each write the whole page, without the other's bytes: they
// cache whole pages, and network file systems do not keep these caches coherent. So a rank does not write its bytes of
// a shared page to the target file, but to a file of fragments in the staging directory. When all ranks are done, rank
// 0 alone writes the fragments to the targets.

/// Collects the fragments of one rank. Thread-safe.
class PageFragments {
 public:
  /// \param prefix  of the names of the fragment files, in `root`.
  /// \param sync  flushes fragment files to stable storage.
  PageFragments(Storage& storage, std::filesystem::path root, std::string prefix, SharedPages pages, bool sync);

  /// Returns a sink that writes to `sink`, target file `file`, except for fragments, which are collected here. This
  /// object must outlive it.
  std::unique_ptr<Sink> guard(std::uint32_t file, std::unique_ptr<Sink> sink);

  /// Writes collected fragments, if any, to a new file.
  /// \throws Error kIo or kNoSpace.
  void spill();
  /// Names of the files written so far, without their directory.
  std::vector<std::string> files() const;

  // For the sinks.
  const SharedPages& pages() const { return pages_; }
  void add(std::uint32_t file, std::uint64_t offset_bytes, std::span<const std::byte> bytes);

 private:
  void write_file();

  Storage& storage_;
  std::filesystem::path root_;
  std::string prefix_;
  SharedPages pages_;
  bool sync_;
  mutable std::mutex mutex_;
  std::string collected_;
  std::vector<std::string> files_;
};

/// Whether `name` is that of a fragment file.
bool is_fragments_file(std::string_view name);

/// Whether a fragment file is complete and undamaged.
bool is_whole_fragments_file(Files& files, const std::filesystem::path& path) noexcept;

/// Writes the fragments in the files `names` to the target's files under `root`.
/// \param names  of fragment files in `root`, from any number of ranks.
/// \param skip_torn  skips incomplete files, whose run was killed.
/// \returns the ascending indices of the target files that were written.
/// \throws Error kBadInput naming a file with fragments of another target; kIo or kNoSpace.
std::vector<std::uint32_t> write_fragments(Storage& storage, const std::filesystem::path& root,
                                           const std::vector<std::string>& names, const TargetMap& target,
                                           bool skip_torn);

}  // namespace reshard
