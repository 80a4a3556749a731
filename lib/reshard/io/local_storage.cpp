#include "reshard/io/local_storage.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <optional>
#include <utility>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/io/local_directories.h"

namespace reshard {
namespace {

constexpr std::size_t kMaxIoBytes = std::size_t{1} << 30;  // Linux moves at most 2 GiB per call

std::uint32_t file_system_of(int fd) {
  struct statfs status {};
  return ::fstatfs(fd, &status) == 0 ? static_cast<std::uint32_t>(status.f_type) : 0;
}

/// Whether the bytes of a file are on another machine or served by another process.
bool is_remote(std::uint32_t file_system) {
  constexpr std::uint32_t kFuse = 0x65735546, kLustre = 0x0BD00BD0, kGpfs = 0x47504653, kBeeGfs = 0x19830326;
  constexpr std::uint32_t kRemote[] = {NFS_SUPER_MAGIC,
                                       SMB_SUPER_MAGIC,
                                       CIFS_SUPER_MAGIC,
                                       SMB2_SUPER_MAGIC,
                                       CEPH_SUPER_MAGIC,
                                       AFS_SUPER_MAGIC,
                                       V9FS_MAGIC,
                                       CODA_SUPER_MAGIC,
                                       kFuse,
                                       kLustre,
                                       kGpfs,
                                       kBeeGfs};
  return std::find(std::begin(kRemote), std::end(kRemote), file_system) != std::end(kRemote);
}

/// Whether the file system can share blocks between files.
bool shares_blocks(std::uint32_t file_system) {
  constexpr std::uint32_t kBcachefs = 0xCA451A4E;
  return file_system == XFS_SUPER_MAGIC || file_system == BTRFS_SUPER_MAGIC || file_system == kBcachefs;
}
constexpr std::uint64_t kSharedBlockBytes = 4096;

/// Repeats `call` while a signal interrupts it, and returns its result.
template <typename Call>
int uninterrupted(Call&& call) {
  int result = 0;
  do result = call();
  while (result != 0 && errno == EINTR);
  return result;
}

/// Returns the kind of `path`; std::nullopt with errno set if it cannot be determined.
std::optional<FileKind> look_at(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) {
    if (S_ISREG(status.st_mode)) return FileKind::kFile;
    return S_ISDIR(status.st_mode) ? FileKind::kDirectory : FileKind::kOther;
  }
  if (errno != ENOENT && errno != ENOTDIR && errno != ELOOP && errno != ENAMETOOLONG) return std::nullopt;
  const bool is_link = ::lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode);
  return is_link ? FileKind::kBrokenLink : FileKind::kNone;
}

/// An open file that owns its descriptor.
class LocalFile final : public Source, public Sink {
 public:
  LocalFile(int fd, std::filesystem::path path, std::uint64_t size_bytes)
      : fd_(fd), path_(std::move(path)), size_bytes_(size_bytes) {}
  LocalFile(const LocalFile&) = delete;
  LocalFile& operator=(const LocalFile&) = delete;
  ~LocalFile() override { ::close(fd_); }

  std::uint64_t size_bytes() const override { return size_bytes_; }
  int descriptor() const override { return fd_; }

  void read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const override {
    while (!out.empty()) {
      const ssize_t got = ::pread(fd_, out.data(), std::min(out.size(), kMaxIoBytes), static_cast<off_t>(offset_bytes));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw system_error(errno, "cannot read", path_).at_byte(offset_bytes);
      if (got == 0)
        throw Error(ErrorKind::kIo, "the file ends here, though it was longer when it was opened")
            .in(path_)
            .at_byte(offset_bytes)
            .hint("another process has truncated it; run again when no other process writes to it");
      offset_bytes += static_cast<std::uint64_t>(got);
      out = out.subspan(static_cast<std::size_t>(got));
    }
  }

  void write_at(std::uint64_t offset_bytes, std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t put =
          ::pwrite(fd_, bytes.data(), std::min(bytes.size(), kMaxIoBytes), static_cast<off_t>(offset_bytes));
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) throw system_error(errno, "cannot write", path_).at_byte(offset_bytes);
      offset_bytes += static_cast<std::uint64_t>(put);
      bytes = bytes.subspan(static_cast<std::size_t>(put));
    }
  }

  void write_gathered(std::uint64_t offset_bytes, std::span<const std::span<const std::byte>> parts) override {
    std::array<iovec, IOV_MAX> vectors;
    while (!parts.empty()) {
      const std::size_t count = std::min(parts.size(), vectors.size());
      for (std::size_t i = 0; i < count; ++i) vectors[i] = {const_cast<std::byte*>(parts[i].data()), parts[i].size()};
      const ssize_t put = ::pwritev(fd_, vectors.data(), static_cast<int>(count), static_cast<off_t>(offset_bytes));
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) throw system_error(errno, "cannot write", path_).at_byte(offset_bytes);
      std::size_t left = static_cast<std::size_t>(put);
      offset_bytes += left;
      while (!parts.empty() && left >= parts.front().size()) {
        left -= parts.front().size();
        parts = parts.subspan(1);
      }
      if (left == 0) continue;  // otherwise the write ended inside a part
      write_at(offset_bytes, parts.front().subspan(left));
      offset_bytes += parts.front().size() - left;
      parts = parts.subspan(1);
    }
  }

  bool copy_pays(const Source& source, std::uint64_t source_offset_bytes, std::uint64_t offset_bytes) const override {
    const bool can = is_remote(file_system_) ||
                     (shares_blocks(file_system_) && (source_offset_bytes | offset_bytes) % kSharedBlockBytes == 0);
    return can && source.descriptor() >= 0 && file_system_of(source.descriptor()) == file_system_;
  }

  bool copy_from(const Source& source, std::uint64_t source_offset_bytes, std::uint64_t offset_bytes,
                 std::uint64_t size_bytes) override {
    if (source.descriptor() < 0) return false;
    auto from = static_cast<off_t>(source_offset_bytes);
    auto to = static_cast<off_t>(offset_bytes);
    while (size_bytes > 0) {
      const ssize_t moved =
          ::copy_file_range(source.descriptor(), &from, fd_, &to, std::min<std::uint64_t>(size_bytes, kMaxIoBytes), 0);
      if (moved < 0 && errno == EINTR) continue;
      // Both file systems and the kernel decide which pairs of files support this. Other failures are left to read and
      // write to report.
      if (moved <= 0) return false;
      size_bytes -= static_cast<std::uint64_t>(moved);
    }
    return true;
  }

  void sync() override {
    if (uninterrupted([&] { return ::fsync(fd_); }) != 0) throw system_error(errno, "cannot flush to disk", path_);
  }

  void start_writeback(std::uint64_t offset_bytes, std::uint64_t size_bytes) override {
    write_back(offset_bytes, size_bytes, SYNC_FILE_RANGE_WRITE);
  }
  void wait_for_writeback(std::uint64_t offset_bytes, std::uint64_t size_bytes) override {
    write_back(offset_bytes, size_bytes, SYNC_FILE_RANGE_WAIT_BEFORE);
  }
  void finish() override {
    if (is_remote(file_system_)) sync();
  }

 private:
  /// No-op on a file system without control over writing back.
  void write_back(std::uint64_t offset_bytes, std::uint64_t size_bytes, unsigned flags) {
    if (size_bytes == 0) return;  // a size of 0 would mean the rest of the file
    const int result = uninterrupted([&] {
      return ::sync_file_range(fd_, static_cast<off64_t>(offset_bytes), static_cast<off64_t>(size_bytes), flags);
    });
    if (result == 0 || is_unsupported(errno) || errno == ESPIPE) return;
    throw system_error(errno, "cannot write back", path_);  // reported only once: sync would not report it again
  }

  int fd_;
  std::filesystem::path path_;
  std::uint64_t size_bytes_;
  std::uint32_t file_system_ = file_system_of(fd_);
};

class LocalStorage final : public Storage {
 public:
  std::unique_ptr<Source> open(const std::filesystem::path& path) override {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT) throw Error(ErrorKind::kBadInput, "no such file").in(path);
    if (fd < 0) throw system_error(errno, "cannot open", path);
    struct stat status {};
    if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
      ::close(fd);
      throw Error(ErrorKind::kBadInput, "not a regular file").in(path);
    }
    return std::make_unique<LocalFile>(fd, path, static_cast<std::uint64_t>(status.st_size));
  }

  std::vector<DirectoryEntry> list(const std::filesystem::path& directory) override {
    std::error_code error;
    std::filesystem::directory_iterator entry(directory, error);
    if (error == std::errc::no_such_file_or_directory)
      throw Error(ErrorKind::kBadInput, "no such directory").in(directory).code(error);
    if (error == std::errc::not_a_directory)
      throw Error(ErrorKind::kBadInput, "is not a directory").in(directory).code(error);
    std::vector<DirectoryEntry> entries;
    for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error))
      entries.push_back({entry->path().filename().string(), entry_kind(*entry), is_link(*entry)});
    if (error) throw system_error(error.value(), "cannot list it", directory);
    std::sort(entries.begin(), entries.end(),
              [](const DirectoryEntry& a, const DirectoryEntry& b) { return a.name < b.name; });
    return entries;
  }

  FileKind kind_of(const std::filesystem::path& path) override {
    const auto found = look_at(path);
    if (!found) throw system_error(errno, "cannot read its attributes", path);
    return *found;
  }

  FileStamp stamp(const std::filesystem::path& path) override {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) return {};
    // The time of the last change, which programs cannot set, reveals a rewritten file whose modification time was
    // restored.
    const std::uint64_t parts[] = {status.st_dev,
                                   status.st_ino,
                                   static_cast<std::uint64_t>(status.st_size),
                                   static_cast<std::uint64_t>(status.st_mtim.tv_sec),
                                   static_cast<std::uint64_t>(status.st_mtim.tv_nsec),
                                   static_cast<std::uint64_t>(status.st_ctim.tv_sec),
                                   static_cast<std::uint64_t>(status.st_ctim.tv_nsec)};
    return FileStamp(std::string(reinterpret_cast<const char*>(parts), sizeof parts));
  }

  FileStamp lasting_stamp(const std::filesystem::path& path) override {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) return {};
    return FileStamp(std::to_string(status.st_size) + " " + std::to_string(status.st_mtim.tv_sec) + "." +
                     std::to_string(status.st_mtim.tv_nsec));
  }

  std::optional<std::int64_t> modified_ns(const std::filesystem::path& path) override {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) return std::nullopt;
    constexpr std::int64_t kNanoseconds = 1'000'000'000;
    return static_cast<std::int64_t>(status.st_mtim.tv_sec) * kNanoseconds + status.st_mtim.tv_nsec;
  }

  std::uint64_t size_bytes(const std::filesystem::path& path) override {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) {
      const int number = errno;
      if (number == ENOENT)
        throw Error(ErrorKind::kBadInput, "no such file").in(path).code({number, std::generic_category()});
      throw system_error(number, "cannot read its attributes", path);
    }
    if (!S_ISREG(status.st_mode)) throw Error(ErrorKind::kBadInput, "not a regular file").in(path);
    return static_cast<std::uint64_t>(status.st_size);
  }

  std::filesystem::path absolute(const std::filesystem::path& path) override {
    std::error_code error;
    std::filesystem::path full = std::filesystem::absolute(path, error);
    if (error) throw system_error(error.value(), "cannot read its attributes", path);
    return full;
  }

  std::filesystem::path resolve(const std::filesystem::path& path) override {
    std::error_code error;
    const std::filesystem::path full = std::filesystem::weakly_canonical(absolute(path), error);
    if (error) throw system_error(error.value(), "cannot read its attributes", path);
    return full.filename().empty() ? full.parent_path() : full;
  }

  bool is_same(const std::filesystem::path& a, const std::filesystem::path& b) override {
    std::error_code ignored;
    return std::filesystem::equivalent(a, b, ignored);
  }

  std::unique_ptr<Sink> create(const std::filesystem::path& path, std::uint64_t size_bytes) override {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) throw system_error(errno, "cannot create", path);
    auto file = sink(fd, path);
    if (size_bytes == 0) return file;
    // Reserving the blocks detects a full disk or quota before the first byte is written, and makes writing faster. On
    // a file system that cannot reserve blocks, creates a sparse file of the right length instead.
    if (uninterrupted([&] { return ::fallocate(fd, 0, 0, static_cast<off_t>(size_bytes)); }) == 0) return file;
    if (!is_unsupported(errno)) throw system_error(errno, "cannot reserve " + format_bytes(size_bytes), path);
    if (uninterrupted([&] { return ::ftruncate(fd, static_cast<off_t>(size_bytes)); }) != 0)
      throw system_error(errno, "cannot reserve " + format_bytes(size_bytes), path);
    return file;
  }

  std::unique_ptr<Sink> reopen(const std::filesystem::path& path) override {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) throw system_error(errno, "cannot open for writing", path);
    return sink(fd, path);
  }

  Directories& directories() override { return local_directories(); }

 private:
  static bool is_link(const std::filesystem::directory_entry& entry) {
    std::error_code ignored;
    return entry.is_symlink(ignored);
  }

  /// Returns the kind of a directory entry: most file systems provide it without another call.
  static FileKind entry_kind(const std::filesystem::directory_entry& entry) {
    std::error_code ignored;  // these calls use the cached type; symlink_status() would query the file again
    if (!entry.is_symlink(ignored)) {
      if (entry.is_regular_file(ignored)) return FileKind::kFile;
      if (entry.is_directory(ignored)) return FileKind::kDirectory;
    }
    return look_at(entry.path()).value_or(FileKind::kOther);
  }

  std::unique_ptr<Sink> sink(int fd, const std::filesystem::path& path) const {
    return std::make_unique<LocalFile>(fd, path, 0);
  }
};

}  // namespace

Storage& local_storage() {
  static LocalStorage storage;
  return storage;
}

}  // namespace reshard
