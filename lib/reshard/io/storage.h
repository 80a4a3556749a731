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

/// Writes bytes of an open file. Thread-safe for ranges that do not overlap.
class Sink {
 public:
  virtual ~Sink() = default;
  /// \throws Error kNoSpace or kIo.
  virtual void write_at(std::uint64_t offset_bytes, std::span<const std::byte> bytes) = 0;
  /// Writes one range whose bytes are in several parts of memory.
  /// \throws like write_at.
  virtual void write_gathered(std::uint64_t offset_bytes, std::span<const std::span<const std::byte>> parts);
  /// Whether copy_from is faster than reading and writing: the file system shares blocks between both files, or a
  /// server copies.
  virtual bool copy_pays(const Source& source, std::uint64_t source_offset_bytes, std::uint64_t offset_bytes) const;
  /// Copies a range of another file without moving it through this process. \returns false if the two files do not
  /// support this, or after any failure; the content of the range is then unspecified, and read_at and write_at report
  /// the reason.
  virtual bool copy_from(const Source& source, std::uint64_t source_offset_bytes, std::uint64_t offset_bytes,
                         std::uint64_t size_bytes);
  /// Starts to write a range back to stable storage, without waiting.
  /// \throws Error kNoSpace or kIo.
  virtual void start_writeback(std::uint64_t offset_bytes, std::uint64_t size_bytes);
  /// Waits for the writes that start_writeback started in a range.
  /// \throws Error kNoSpace or kIo.
  virtual void wait_for_writeback(std::uint64_t offset_bytes, std::uint64_t size_bytes);
  /// Call instead of sync if the data need not be on stable storage. Makes file systems that delay errors, such as
  /// network file systems, report them now.
  /// \throws Error kNoSpace or kIo.
  virtual void finish() {}
  /// Waits until everything written so far is on stable storage.
  /// \throws Error kNoSpace or kIo.
  virtual void sync() = 0;
};

/// Files that can also be written. Called once per run of bytes, never per row. Implemented by the local file system,
/// and by a failing one in tests. An object store cannot implement this interface, because objects cannot be written at
/// offsets: it implements Files, and outputs are staged on another Storage.
class Storage : public Files {
 public:
  /// Creates a file of `size_bytes`. Its bytes are undefined until written.
  /// \throws Error kIo if the file exists or cannot be created; kNoSpace if the file system is too full.
  virtual std::unique_ptr<Sink> create(const std::filesystem::path& path, std::uint64_t size_bytes) = 0;
  /// Opens a file from `create` for more writing.
  virtual std::unique_ptr<Sink> reopen(const std::filesystem::path& path) = 0;
  /// Directory operations of this storage. Borrowed: lives as long as the storage.
  virtual Directories& directories() = 0;
};

}  // namespace reshard
