#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "reshard/base/error.h"

namespace reshard {

/// Bytes to read. Safe to use from several threads at once.
class Source {
 public:
  virtual ~Source() = default;
  virtual std::uint64_t size_bytes() const = 0;
  /// Fills `out` from `offset_bytes`.
  /// \throws Error kIo if the bytes cannot be read or the file ends before them (it was cut while in use).
  virtual void read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const = 0;
};

/// Bytes to write. Safe to use from several threads at once on ranges that do not overlap.
class Sink {
 public:
  virtual ~Sink() = default;
  /// \throws Error kNoSpace or kIo.
  virtual void write_at(std::uint64_t offset_bytes, std::span<const std::byte> bytes) = 0;
  /// Returns once everything written so far is on stable storage.
  /// \throws Error kNoSpace or kIo.
  virtual void sync() = 0;
};

/// Where sources and sinks come from; crossed once per run of bytes, never per row. The local file system is the one
/// that exists; tests put a failing one in its place.
class Storage {
 public:
  virtual ~Storage() = default;
  /// \throws Error kBadInput if there is no such regular file; kIo if it cannot be opened.
  virtual std::unique_ptr<Source> open(const std::filesystem::path& path) = 0;
  /// Creates a new file of `size_bytes` (its bytes are undefined until written).
  /// \throws Error kIo if it exists or cannot be created; kNoSpace if the file system cannot hold it.
  virtual std::unique_ptr<Sink> create(const std::filesystem::path& path, std::uint64_t size_bytes) = 0;
  /// Opens a file that `create` made, to write more of it.
  virtual std::unique_ptr<Sink> reopen(const std::filesystem::path& path) = 0;
};

/// The local file system; lives as long as the program.
Storage& local_storage();

/// Whether something is there; links are followed. False, too, where nothing of that name can be: a name that is too
/// long, a loop of links.
/// \throws Error kIo where it may not be known (a directory that may not be searched).
bool path_exists(const std::filesystem::path& path);

/// The path as the file system means it: absolute, links and dots resolved as far as it exists, no slash at its end.
std::filesystem::path resolved_path(const std::filesystem::path& path);

/// Calls `action`; what std::filesystem throws in it (a loop of links, a directory that may not be read, a name too
/// long) becomes an Error kIo. The entry points of the library go through it.
template <typename Action>
auto with_file_system_errors(Action&& action) {
  try {
    return action();
  } catch (const std::filesystem::filesystem_error& error) {
    throw system_error(error.code().value(), "cannot look at it", error.path1());
  }
}

/// The whole content of a small text file.
/// \throws Error kBadInput if it is missing or larger than `cap_bytes`.
std::string read_text_file(const std::filesystem::path& path, std::uint64_t cap_bytes);

}  // namespace reshard
