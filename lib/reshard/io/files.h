// io/: file access. Code that reads checkpoints takes a Files, implemented for the local file system (local_storage.h)
// and for memory (memory_files.h). Storage adds writing.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "reshard/base/error.h"

namespace reshard {

/// Reads bytes of an open file. Thread-safe.
class Source {
 public:
  virtual ~Source() = default;
  virtual std::uint64_t size_bytes() const = 0;
  /// Reads `out.size()` bytes at `offset_bytes`.
  /// \throws Error kIo, naming the file, if the bytes cannot be read or the file ends before them (it was truncated
  ///         while in use).
  virtual void read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const = 0;

  /// Returns the file descriptor, for calls that copy between files, or -1 (the default).
  virtual int descriptor() const { return -1; }
};

/// Kind of the file that a name refers to; links are followed.
enum class FileKind : std::uint8_t {
  kNone,        // no such file, or an impossible name
  kFile,        // a regular file or an object
  kDirectory,   // for an object store: the prefix of at least one name
  kBrokenLink,  // a link to a missing target
  kOther,       // a pipe or a device
};

/// Identifies a state of a file: if two stamps of a path are equal, the file was not written in between. Opaque: inode
/// and time for local files, an ETag for objects. A missing file has the empty stamp.
class FileStamp {
 public:
  FileStamp() = default;
  explicit FileStamp(std::string state) : state_(std::move(state)) {}
  bool empty() const { return state_.empty(); }
  /// Bytes of the stamp, for storing it in a file.
  const std::string& text() const { return state_; }

  friend bool operator==(const FileStamp&, const FileStamp&) = default;
  friend auto operator<=>(const FileStamp&, const FileStamp&) = default;

 private:
  std::string state_;
};

struct DirectoryEntry {
  std::string name;  // relative to the directory
  FileKind kind = FileKind::kNone;
  bool is_link = false;  // then `kind` is the kind of its target

  friend bool operator==(const DirectoryEntry&, const DirectoryEntry&) = default;
};

/// The interface for reading files. Only the implementation interprets paths: callers get paths from users and from
/// `list`, append names to them, and never pass them to the operating system. Each operation therefore maps to one
/// request of an object store: GET of ranges, LIST with a delimiter, or HEAD. Relative local paths start at the working
/// directory. Thread-safe.
class Files {
 public:
  virtual ~Files() = default;

  /// Opens a file for reading. The Source must not outlive its Files.
  /// \throws Error kBadInput if no such regular file exists; kIo if it cannot be opened.
  virtual std::unique_ptr<Source> open(const std::filesystem::path& path) = 0;

  /// Lists the entries of a directory, ordered by name in ascending byte order. Entries of unknown kind are kOther.
  /// \throws Error kBadInput if no such directory exists; kIo if it cannot be read. Error::code() contains the reason.
  virtual std::vector<DirectoryEntry> list(const std::filesystem::path& directory) = 0;

  /// \throws Error kIo if the kind cannot be determined (the directory may not be searched).
  virtual FileKind kind_of(const std::filesystem::path& path) = 0;

  /// Returns the current stamp of a file. Taken before the file is opened, it reveals every later change. Empty if
  /// kind_of would return kNone or kBrokenLink, or throw.
  virtual FileStamp stamp(const std::filesystem::path& path) = 0;

  /// Same as stamp, but without parts that depend on the machine or change when a file system is remounted.
  virtual FileStamp lasting_stamp(const std::filesystem::path& path) { return stamp(path); }

  /// Time of the last write, in nanoseconds since 1970; std::nullopt if unknown. Copying a file may change it.
  virtual std::optional<std::int64_t> modified_ns(const std::filesystem::path& path);

  /// Size of a regular file.
  /// \throws like open.
  virtual std::uint64_t size_bytes(const std::filesystem::path& path);

  /// Returns `path` as an absolute path, by its text alone: links and dots stay.
  /// \throws Error kIo.
  virtual std::filesystem::path absolute(const std::filesystem::path& path) = 0;

  /// Returns the canonical form of `path`: absolute, without a trailing slash; links and dots are resolved as far as
  /// the path exists.
  /// \throws Error kIo.
  virtual std::filesystem::path resolve(const std::filesystem::path& path) = 0;

  /// Whether both paths exist and refer to the same file or directory; false if unknown.
  virtual bool is_same(const std::filesystem::path& a, const std::filesystem::path& b);

  /// Whether `path` exists; a broken link does not.
  bool exists(const std::filesystem::path& path);
  bool is_directory(const std::filesystem::path& path) { return kind_of(path) == FileKind::kDirectory; }
  bool is_file(const std::filesystem::path& path) { return kind_of(path) == FileKind::kFile; }
};

/// Returns the parent directory of `path`, for any spelling of `path`.
std::filesystem::path directory_above(Files& files, const std::filesystem::path& path);
/// Returns the last component of `path`, for any spelling of `path`.
std::string own_name(Files& files, const std::filesystem::path& path);

/// Whether two files contain the same bytes.
/// \throws Error kBadInput if one is not a file; kIo.
bool same_content(Files& files_of_a, const std::filesystem::path& a, Files& files_of_b, const std::filesystem::path& b);

}  // namespace reshard
