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

// Two machines that write to one page of a file may each write all of it, with what the other one wrote missing: their
// caches are of pages, and a network file system does not keep them alike. So what a rank has for a page that others
// write to does not go into the target's file, but into a file of fragments in the staging directory. When all ranks
// are done, rank 0 alone writes these into the targets.

/// Collects the fragments of one rank. Thread-safe.
class PageFragments {
 public:
  /// \param prefix  of the names of its files, in `root`.
  /// \param sync  they are brought to stable storage.
  PageFragments(Storage& storage, std::filesystem::path root, std::string prefix, SharedPages pages, bool sync);

  /// Writes to `sink`, target file `file`, but for fragments, which are collected here. This must outlive it.
  std::unique_ptr<Sink> guard(std::uint32_t file, std::unique_ptr<Sink> sink);

  /// Writes what is collected, if anything, into a file of its own.
  /// \throws Error kIo or kNoSpace.
  void spill();
  /// Of the files written so far, without their directory.
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

/// Whether a file in a staging directory has such a name.
bool is_fragments_file(std::string_view name);

/// Whether a file of fragments is as it was written.
bool is_whole_fragments_file(Files& files, const std::filesystem::path& path) noexcept;

/// Writes what the files hold into the target's files under `root`.
/// \param names  of files in `root`, those of any number of ranks.
/// \param skip_torn  what is not whole is left out: the run that wrote it was killed.
/// \returns the indices of the target's files that were written to, ascending.
/// \throws Error kBadInput naming a file that is none of this target; kIo or kNoSpace.
std::vector<std::uint32_t> write_fragments(Storage& storage, const std::filesystem::path& root,
                                           const std::vector<std::string>& names, const TargetMap& target,
                                           bool skip_torn);

}  // namespace reshard
