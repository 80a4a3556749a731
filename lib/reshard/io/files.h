// io/: files, wherever they are. Everything that reads checkpoints asks a Files for them; the local file system
// (storage.h) and memory (memory_files.h) are the ones that exist. Writing is Storage's.
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

/// Bytes to read. Safe to use from several threads at once.
class Source {
 public:
  virtual ~Source() = default;
  virtual std::uint64_t size_bytes() const = 0;
  /// Fills `out` from `offset_bytes`.
  /// \throws Error kIo, naming the file, if the bytes cannot be read or the file ends before them (it was cut while in
  ///         use).
  virtual void read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const = 0;

  /// The descriptor, for calls that move bytes from file to file; -1 if there is none, as by default.
  virtual int descriptor() const { return -1; }
};

/// What a name stands for; links are followed.
enum class FileKind : std::uint8_t {
  kNone,        // nothing there, or nothing that can have such a name
  kFile,        // a regular file, an object
  kDirectory,   // for an object store: the prefix of at least one name
  kBrokenLink,  // a link that leads nowhere
  kOther,       // a pipe, a device
};

/// Tells one state of a file from another: equal stamps of one path mean that nobody has written the file in between.
/// Opaque: inode and time for local files, an ETag for objects. A file that does not exist has the empty stamp.
class FileStamp {
 public:
  FileStamp() = default;
  explicit FileStamp(std::string state) : state_(std::move(state)) {}
  bool empty() const { return state_.empty(); }
  /// Its bytes, to be kept in a file.
  const std::string& text() const { return state_; }

  friend bool operator==(const FileStamp&, const FileStamp&) = default;
  friend auto operator<=>(const FileStamp&, const FileStamp&) = default;

 private:
  std::string state_;
};

struct DirectoryEntry {
  std::string name;  // without the directory
  FileKind kind = FileKind::kNone;
  bool is_link = false;  // `kind` is that of what it leads to

  friend bool operator==(const DirectoryEntry&, const DirectoryEntry&) = default;
};

/// The one door to files that are read. A path is a name that only the implementation gives a meaning: callers take
/// paths from users and from `list` and join names to them, and never ask the operating system about them. So each
/// operation is one request of an object store: GET of ranges, LIST with a delimiter, HEAD. Safe to use from several
/// threads at once. Local paths that are relative start at the working directory.
class Files {
 public:
  virtual ~Files() = default;

  /// Opens a file to read it. The source must not outlive its Files.
  /// \throws Error kBadInput if there is no such regular file; kIo if it cannot be opened.
  virtual std::unique_ptr<Source> open(const std::filesystem::path& path) = 0;

  /// What lies directly in a directory, by name in ascending byte order. An entry whose kind cannot be known is kOther.
  /// \throws Error kBadInput if there is no such directory; kIo if it cannot be read. Error::code says why.
  virtual std::vector<DirectoryEntry> list(const std::filesystem::path& directory) = 0;

  /// \throws Error kIo where it cannot be known (a directory that may not be searched).
  virtual FileKind kind_of(const std::filesystem::path& path) = 0;

  /// The stamp of the file that has this name now. To take it before the file is opened makes every later change
  /// visible. Empty where kind_of would say kNone or kBrokenLink, or throw.
  virtual FileStamp stamp(const std::filesystem::path& path) = 0;

  /// The stamp without what differs from machine to machine, or when a file system is mounted anew.
  virtual FileStamp lasting_stamp(const std::filesystem::path& path) { return stamp(path); }

  /// When the file was last written, in nanoseconds since 1970; nothing where that is not known. Copies may change it.
  virtual std::optional<std::int64_t> modified_ns(const std::filesystem::path& path);

  /// The size of a regular file.
  /// \throws as open.
  virtual std::uint64_t size_bytes(const std::filesystem::path& path);

  /// `path` from the root on, by its text alone: links and dots stay.
  /// \throws Error kIo.
  virtual std::filesystem::path absolute(const std::filesystem::path& path) = 0;

  /// The one name of what `path` stands for: absolute, links and dots resolved as far as it exists, no slash at its
  /// end.
  /// \throws Error kIo.
  virtual std::filesystem::path resolve(const std::filesystem::path& path) = 0;

  /// Whether both paths exist and stand for one file or directory; false where that cannot be known.
  virtual bool is_same(const std::filesystem::path& a, const std::filesystem::path& b);

  /// Whether `kind_of` finds something; a link that leads nowhere is nothing.
  bool exists(const std::filesystem::path& path);
  bool is_directory(const std::filesystem::path& path) { return kind_of(path) == FileKind::kDirectory; }
  bool is_file(const std::filesystem::path& path) { return kind_of(path) == FileKind::kFile; }
};

/// The directory above `path`, whichever way that is written.
std::filesystem::path directory_above(Files& files, const std::filesystem::path& path);
/// The last part of `path`, whichever way that is written.
std::string own_name(Files& files, const std::filesystem::path& path);

}  // namespace reshard
