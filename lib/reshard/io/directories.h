#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string_view>

namespace reshard {

/// What a file or directory lets whom do.
struct Access {
  std::uint32_t bits = 0;   // the nine permission bits of POSIX
  std::uint32_t group = 0;  // the one that the middle three are for
};

enum class RenameMode : std::uint8_t {
  kReplace,   // a file that stands at the new name gives way
  kNew,       // nothing may stand at the new name
  kExchange,  // both names exist and are swapped
};
enum class RenameResult : std::uint8_t {
  kDone,
  kExists,       // kNew: something stands there
  kUnsupported,  // the file system cannot do this in one step
};

/// Keeps other runs from a directory as long as it lives.
class DirectoryClaim {
 public:
  virtual ~DirectoryClaim() = default;
};

/// A lock on a file, which ends with this object and with the process.
class FileLock {
 public:
  virtual ~FileLock() = default;
  /// Makes an exclusive lock a shared one, with no moment in between when another process could take it.
  /// \throws Error kIo.
  virtual void share() = 0;
};

/// Directories that were opened before they get entries, so that flushing them needs nothing more that may be denied.
class OpenDirectories {
 public:
  virtual ~OpenDirectories() = default;
  /// Returns once their entries are on stable storage.
  /// \throws Error kIo or kNoSpace.
  virtual void flush() = 0;
};

/// What outputs need of directories to grow in one and get their names in another. Paths are those of the Storage that
/// it belongs to; links are followed unless said otherwise. Every Error is kIo, unless said otherwise, and names the
/// path.
class Directories {
 public:
  virtual ~Directories() = default;

  /// Whether `path` itself is a link; false where that cannot be known.
  virtual bool is_link(const std::filesystem::path& path) = 0;
  /// Whether `path` itself is a directory, not a link, of the user as whom this process makes new ones there.
  virtual bool is_own(const std::filesystem::path& path) = 0;

  /// Nothing where that cannot be known.
  virtual std::optional<Access> access(const std::filesystem::path& path) = 0;
  /// Sets the nine permission bits. A file system that knows none is left alone.
  /// \throws Error.
  virtual void set_access_bits(const std::filesystem::path& path, std::uint32_t bits) = 0;
  /// The permission bits that new files and directories may have (those that the umask leaves).
  virtual std::uint32_t bits_for_new() = 0;

  /// \throws Error if no entries can be added.
  virtual void validate_writable(const std::filesystem::path& directory) = 0;
  /// \throws Error.
  virtual std::uint64_t free_bytes(const std::filesystem::path& directory) = 0;

  /// Makes a directory. \returns false if there is one.
  /// \throws Error.
  virtual bool make(const std::filesystem::path& path, std::uint32_t bits) = 0;
  /// Makes a directory that only its owner may look into. \returns its path: `stem` and six more characters.
  /// \throws Error.
  virtual std::filesystem::path make_private(const std::filesystem::path& stem) = 0;
  /// Removes what it can of a directory and all in it.
  virtual void remove_tree(const std::filesystem::path& path) noexcept = 0;
  /// Removes a directory that is empty.
  virtual void remove_empty(const std::filesystem::path& path) noexcept = 0;

  /// \throws Error; then nothing was renamed.
  virtual RenameResult rename(const std::filesystem::path& from, const std::filesystem::path& to, RenameMode mode) = 0;

  /// Claims a directory, alone or together with others that share it. Where it cannot be locked the claim keeps nobody
  /// off.
  /// \throws Error if another run has a claim on it.
  virtual std::unique_ptr<DirectoryClaim> claim(const std::filesystem::path& directory, bool shared) = 0;

  /// Locks a file that is no link, which is made for a shared lock if it is missing, against other processes; on other machines, too,
  /// where the file system's locks reach there. \returns null if another process has one, unless both are shared.
  /// \throws Error kUnsupported where the file system has no locks; kIo.
  virtual std::unique_ptr<FileLock> lock(const std::filesystem::path& file, bool shared) = 0;

  /// \param inside  A directory on their file system that can be opened: one that may be written to but not read is
  ///                flushed by way of it, with the whole file system.
  /// \throws Error.
  virtual std::unique_ptr<OpenDirectories> open(const std::set<std::filesystem::path>& directories,
                                                const std::filesystem::path& inside) = 0;
};

}  // namespace reshard
