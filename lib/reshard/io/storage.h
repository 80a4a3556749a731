#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "reshard/base/error.h"
#include "reshard/io/directories.h"
#include "reshard/io/files.h"

namespace reshard {

/// Bytes to write. Safe to use from several threads at once on ranges that do not overlap.
class Sink {
 public:
  virtual ~Sink() = default;
  /// \throws Error kNoSpace or kIo.
  virtual void write_at(std::uint64_t offset_bytes, std::span<const std::byte> bytes) = 0;
  /// Writes one range that lies in parts.
  /// \throws as write_at.
  virtual void write_gathered(std::uint64_t offset_bytes, std::span<const std::span<const std::byte>> parts);
  /// Whether copy_from is better than reading and writing: where no bytes move at all, because the file system lets
  /// both files have the same blocks, or a server does it.
  virtual bool copy_pays(const Source& source, std::uint64_t source_offset_bytes, std::uint64_t offset_bytes) const;
  /// Copies a range of a file without bringing it here. \returns false, with nothing said about the range's bytes,
  /// where the two files cannot do that, and after any failure: read_at and write_at then say which.
  virtual bool copy_from(const Source& source, std::uint64_t source_offset_bytes, std::uint64_t offset_bytes,
                         std::uint64_t size_bytes);
  /// Starts to bring what has been written of a range to stable storage, and does not wait.
  /// \throws Error kNoSpace or kIo.
  virtual void start_writeback(std::uint64_t offset_bytes, std::uint64_t size_bytes);
  /// Returns once what start_writeback has started in a range is done.
  /// \throws Error kNoSpace or kIo.
  virtual void wait_for_writeback(std::uint64_t offset_bytes, std::uint64_t size_bytes);
  /// In place of sync, where nobody waits for the disk: has file systems that tell errors late, as those of a network
  /// do, tell them now.
  /// \throws Error kNoSpace or kIo.
  virtual void finish() {}
  /// Returns once everything written so far is on stable storage.
  /// \throws Error kNoSpace or kIo.
  virtual void sync() = 0;
};

/// Files that can be written, too; crossed once per run of bytes, never per row. The local file system is the one that
/// exists; tests put a failing one in its place. An object store cannot be one, since objects are not written at
/// offsets: it is a Files to read from, and outputs are staged on a Storage.
class Storage : public Files {
 public:
  /// Creates a new file of `size_bytes` (its bytes are undefined until written).
  /// \throws Error kIo if it exists or cannot be created; kNoSpace if the file system cannot hold it.
  virtual std::unique_ptr<Sink> create(const std::filesystem::path& path, std::uint64_t size_bytes) = 0;
  /// Opens a file that `create` made, to write more of it.
  virtual std::unique_ptr<Sink> reopen(const std::filesystem::path& path) = 0;
  /// For what directories do besides holding files. Borrowed: it lives as long as the storage.
  virtual Directories& directories() = 0;
};

}  // namespace reshard
