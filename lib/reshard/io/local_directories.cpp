#include "reshard/io/local_directories.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "reshard/base/error.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kPermissionBits = 0777;

int open_directory(const fs::path& path) {
  return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/// Owns a file descriptor; -1 if empty.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

class LocalClaim final : public DirectoryClaim {
 public:
  explicit LocalClaim(Descriptor lock) : lock_(std::move(lock)) {}

 private:
  Descriptor lock_;
};

/// Sets a lock of the open file description: it survives forks and the closing of other descriptors in this process.
/// flock is not used because other machines do not see its locks.
/// \returns whether the lock was set; otherwise errno contains the reason.
bool set_lock(int descriptor, bool shared) {
  struct flock range {};
  range.l_type = static_cast<short>(shared ? F_RDLCK : F_WRLCK);
  range.l_whence = SEEK_SET;
  return ::fcntl(descriptor, F_OFD_SETLK, &range) == 0;
}

class LocalFileLock final : public FileLock {
 public:
  LocalFileLock(Descriptor file, fs::path path) : file_(std::move(file)), path_(std::move(path)) {}
  void share() override {
    if (!set_lock(file_.get(), true)) throw system_error(errno, "cannot lock", path_);
  }

 private:
  Descriptor file_;
  fs::path path_;
};

class LocalOpenDirectories final : public OpenDirectories {
 public:
  LocalOpenDirectories(const std::set<fs::path>& directories, const fs::path& inside) {
    bool all = true;
    for (const fs::path& path : directories) {
      const int failed = open(path, ::fsync);
      if (failed != 0 && failed != EACCES) throw system_error(failed, "cannot open", path);
      all = all && failed == 0;
    }
    if (const int failed = all ? 0 : open(inside, ::syncfs)) throw system_error(failed, "cannot open", inside);
  }

  void flush() override {
    for (const Opened& one : opened_)
      if (one.flush(one.fd.get()) != 0 && !is_unsupported(errno))
        throw system_error(errno, "cannot flush to disk", one.path);
  }

 private:
  using Flush = int (*)(int fd);
  struct Opened {
    fs::path path;
    Flush flush;
    Descriptor fd;
  };

  /// \returns 0 or an errno value.
  int open(const fs::path& path, Flush flush_it) {
    Descriptor fd(open_directory(path));
    if (fd.get() < 0) return errno;
    opened_.push_back({path, flush_it, std::move(fd)});
    return 0;
  }

  std::vector<Opened> opened_;
};

/// Returns the result of listxattr or getxattr, which `call` makes; std::nullopt if it fails.
template <typename Call>
std::optional<std::string> attribute_bytes(Call&& call) {
  std::string bytes;
  for (ssize_t size = call(nullptr, 0); size >= 0; size = call(nullptr, 0)) {
    bytes.resize(static_cast<std::size_t>(size));
    const ssize_t got = size == 0 ? 0 : call(bytes.data(), bytes.size());
    if (got < 0 && errno == ERANGE) continue;  // it has grown since
    if (got < 0) break;
    bytes.resize(static_cast<std::size_t>(got));
    return bytes;
  }
  return std::nullopt;
}

/// Extended attributes by name; empty if the file system has none.
std::map<std::string, std::string> extended_attributes(const fs::path& path) {
  std::map<std::string, std::string> attributes;
  const auto names =
      attribute_bytes([&](char* bytes, std::size_t size) { return ::listxattr(path.c_str(), bytes, size); });
  for (std::size_t at = 0; names && at < names->size();) {
    const std::string name = names->c_str() + at;
    at += name.size() + 1;
    auto value = attribute_bytes(
        [&](char* bytes, std::size_t size) { return ::getxattr(path.c_str(), name.c_str(), bytes, size); });
    if (value) attributes.emplace(name, std::move(*value));
  }
  return attributes;
}

bool copy_extended_attributes(const fs::path& from, const fs::path& to) {
  bool all = true;
  const auto wanted = extended_attributes(from), has = extended_attributes(to);
  for (const auto& [name, value] : has)
    if (wanted.count(name) == 0) all = ::removexattr(to.c_str(), name.c_str()) == 0 && all;
  for (const auto& [name, value] : wanted)
    if (const auto found = has.find(name); found == has.end() || found->second != value)
      all = ::setxattr(to.c_str(), name.c_str(), value.data(), value.size(), 0) == 0 && all;
  return all;
}

class LocalDirectories final : public Directories {
 public:
  std::optional<std::string> link_target(const fs::path& path) override {
    std::error_code failed;
    const fs::path target = fs::read_symlink(path, failed);
    return failed ? std::nullopt : std::optional(target.string());
  }

  bool is_own(const fs::path& path) override {
    struct stat status {};
    if (::lstat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return false;
    if (status.st_uid == ::geteuid()) return true;
    // A file server may map this user to another one, who then owns new directories.
    std::string name = (path / ".own-XXXXXX").string();
    struct stat of_new {};
    if (::mkdtemp(name.data()) == nullptr) return false;
    const bool same = ::lstat(name.c_str(), &of_new) == 0 && of_new.st_uid == status.st_uid;
    ::rmdir(name.c_str());
    return same;
  }

  std::optional<Access> access(const fs::path& path) override {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) return std::nullopt;
    return Access{status.st_mode & kPermissionBits, status.st_gid};
  }

  void set_access_bits(const fs::path& path, std::uint32_t bits) override {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) throw system_error(errno, "cannot read its attributes", path);
    if (::chmod(path.c_str(), (status.st_mode & 07000) | bits) == 0) return;
    if (errno != EPERM && errno != ENOTSUP && errno != ENOSYS)
      throw system_error(errno, "cannot change its permissions", path);
  }

  bool copy_attributes(const fs::path& from, const fs::path& to) override {
    struct stat old {
    }, made{};
    if (::stat(from.c_str(), &old) != 0 || ::stat(to.c_str(), &made) != 0) return false;
    constexpr mode_t kAllBits = 07777;
    bool all = true;
    if (old.st_uid != made.st_uid || old.st_gid != made.st_gid) all = ::chown(to.c_str(), old.st_uid, old.st_gid) == 0;
    all = copy_extended_attributes(from, to) && all;  // first: a change of access control lists changes the mode
    if (::stat(to.c_str(), &made) == 0 && ((old.st_mode ^ made.st_mode) & kAllBits) != 0)
      all = ::chmod(to.c_str(), old.st_mode & kAllBits) == 0 && all;
    return all;
  }

  std::uint32_t bits_for_new() override {
    const mode_t mask = ::umask(077);  // keeps files private that other threads create in the meantime
    ::umask(mask);
    return kPermissionBits & ~mask;
  }

  void validate_writable(const fs::path& directory) override {
    if (::access(directory.c_str(), W_OK | X_OK) != 0) throw system_error(errno, "cannot write here", directory);
  }

  std::uint64_t free_bytes(const fs::path& directory) override {
    struct statvfs status {};
    if (::statvfs(directory.c_str(), &status) != 0) throw system_error(errno, "cannot query the free space", directory);
    return static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
  }

  bool make(const fs::path& path, std::uint32_t bits) override {
    if (::mkdir(path.c_str(), bits) == 0) return true;
    const int number = errno;
    struct stat status {};
    if (number == EEXIST && ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) return false;
    throw system_error(number, "cannot create the directory", path);
  }

  fs::path make_private(const fs::path& stem) override {
    std::string name = stem.string() + "XXXXXX";
    if (::mkdtemp(name.data()) == nullptr)
      throw system_error(errno, "cannot create a temporary directory", stem.parent_path());
    return name;
  }

  void remove_tree(const fs::path& path) noexcept override {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }

  void remove_empty(const fs::path& path) noexcept override { ::rmdir(path.c_str()); }

  RenameResult rename(const fs::path& from, const fs::path& to, RenameMode mode) override {
    const unsigned flags = mode == RenameMode::kNew        ? RENAME_NOREPLACE
                           : mode == RenameMode::kExchange ? RENAME_EXCHANGE
                                                           : 0;
    const int result = flags == 0 ? ::rename(from.c_str(), to.c_str())
                                  : ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags);
    if (result == 0) return RenameResult::kDone;
    if (mode == RenameMode::kNew && errno == EEXIST) return RenameResult::kExists;
    if (flags != 0 && is_unsupported(errno)) return RenameResult::kUnsupported;
    throw system_error(errno, "cannot rename to", to);
  }

  std::unique_ptr<DirectoryClaim> claim(const fs::path& directory, bool shared) override {
    Descriptor lock(open_directory(directory));
    const int kind = shared ? LOCK_SH : LOCK_EX;
    if (lock.get() >= 0 && ::flock(lock.get(), kind | LOCK_NB) != 0 && errno == EWOULDBLOCK)
      throw Error(ErrorKind::kIo, "another run is writing here").in(directory).hint("wait until it finishes");
    return std::make_unique<LocalClaim>(std::move(lock));
  }

  std::unique_ptr<FileLock> lock(const fs::path& file, bool shared) override {
    Descriptor lock(::open(file.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | (shared ? O_CREAT : 0), 0600));
    if (lock.get() < 0) throw system_error(errno, "cannot open", file);
    if (set_lock(lock.get(), shared)) return std::make_unique<LocalFileLock>(std::move(lock), file);
    if (errno == EAGAIN || errno == EACCES) return nullptr;
    if (errno == ENOLCK || is_unsupported(errno))
      throw Error(ErrorKind::kUnsupported, "its file system, or the kernel, has no locks").in(file);
    throw system_error(errno, "cannot lock", file);
  }

  std::unique_ptr<OpenDirectories> open(const std::set<fs::path>& directories, const fs::path& inside) override {
    return std::make_unique<LocalOpenDirectories>(directories, inside);
  }
};

}  // namespace

bool is_unsupported(int errno_value) {
  return errno_value == EINVAL || errno_value == ENOSYS || errno_value == ENOTSUP || errno_value == EPERM;
}

Directories& local_directories() {
  static LocalDirectories directories;
  return directories;
}

}  // namespace reshard
