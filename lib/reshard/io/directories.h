#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace reshard {

/// Permissions of a file or directory.
struct Access {
  std::uint32_t bits = 0;   // the nine POSIX permission bits
  std::uint32_t group = 0;  // the group that the middle three bits apply to
};

enum class RenameMode : std::uint8_t {
  kReplace,   // replaces an existing file at the new name
  kNew,       // fails if the new name exists
  kExchange,  // swaps two existing names
};
enum class RenameResult : std::uint8_t {
  kDone,
  kExists,       // kNew: the new name exists
  kUnsupported,  // the file system cannot do this atomically
};

/// Keeps other runs out of a directory until it is destroyed.
class DirectoryClaim {
 public:
  virtual ~DirectoryClaim() = default;
};

/// A lock on a file. Released when this object is destroyed or the process ends.
class FileLock {
 public:
  virtual ~FileLock() = default;
  /// Downgrades an exclusive lock to a shared lock atomically.
  /// \throws Error kIo.
  virtual void share() = 0;
};

/// Directories that are opened before they get entries, so that access cannot be denied when they are flushed.
class OpenDirectories {
 public:
  virtual ~OpenDirectories() = default;
  /// Returns once the entries of all directories are on stable storage.
  /// \throws Error kIo or kNoSpace.
  virtual void flush() = 0;
};

/// Directory operations for staging and publishing outputs. Paths are those of the Storage that owns this object. Links
/// are followed and every Error is kIo unless stated otherwise. Every Error names the path.
class Directories {
 public:
  virtual ~Directories() = default;

  /// Returns what the link `path` contains; std::nullopt if it is no link, or if that is unknown.
  virtual std::optional<std::string> link_target(const std::filesystem::path& path) = 0;
  /// Whether `path` itself is a link; false if unknown.
  bool is_link(const std::filesystem::path& path) { return link_target(path).has_value(); }
  /// Whether `path` is a directory, not a link, and has the owner that this process's new directories there get.
  virtual bool is_own(const std::filesystem::path& path) = 0;

  /// Returns std::nullopt if unknown.
  virtual std::optional<Access> access(const std::filesystem::path& path) = 0;
  /// Sets the nine permission bits. No-op on a file system without permissions.
  /// \throws Error.
  virtual void set_access_bits(const std::filesystem::path& path, std::uint32_t bits) = 0;
  /// Gives a directory the owner, group, permissions, special bits and extended attributes of another one. Extended
  /// attributes include access control lists. \returns whether it has all of them now.
  virtual bool copy_attributes(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  /// The permission bits of new files and directories that the umask allows.
  virtual std::uint32_t bits_for_new() = 0;

  /// \throws Error if no entries can be added to `directory`.
  virtual void validate_writable(const std::filesystem::path& directory) = 0;
  /// \throws Error.
  virtual std::uint64_t free_bytes(const std::filesystem::path& directory) = 0;

  /// Creates a directory. \returns false if it exists.
  /// \throws Error.
  virtual bool make(const std::filesystem::path& path, std::uint32_t bits) = 0;
  /// Creates a directory that only its owner can access. \returns its path: `stem` and six more characters.
  /// \throws Error.
  virtual std::filesystem::path make_private(const std::filesystem::path& stem) = 0;
  /// Removes a directory and its contents, as far as possible.
  virtual void remove_tree(const std::filesystem::path& path) noexcept = 0;
  /// Removes a directory if it is empty.
  virtual void remove_empty(const std::filesystem::path& path) noexcept = 0;

  /// \throws Error if nothing was renamed.
  virtual RenameResult rename(const std::filesystem::path& from, const std::filesystem::path& to, RenameMode mode) = 0;

  /// Claims a directory, exclusively or shared. If the directory cannot be locked, the claim has no effect.
  /// \throws Error if another run has a conflicting claim.
  virtual std::unique_ptr<DirectoryClaim> claim(const std::filesystem::path& directory, bool shared) = 0;

  /// Locks a file against other processes, including those on other machines if the file system supports it. The file
  /// must not be a link. A shared lock creates a missing file. \returns null if another process has a conflicting lock.
  /// \throws Error kUnsupported if the file system has no locks; kIo.
  virtual std::unique_ptr<FileLock> lock(const std::filesystem::path& file, bool shared) = 0;

  /// \param inside  a directory on the same file system that can be opened. A directory that can be written but not
  ///                read is flushed through it, by flushing the whole file system.
  /// \throws Error.
  virtual std::unique_ptr<OpenDirectories> open(const std::set<std::filesystem::path>& directories,
                                                const std::filesystem::path& inside) = 0;
};

}  // namespace reshard
