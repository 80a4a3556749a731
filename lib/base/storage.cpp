#include "reshard/base/storage.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"

namespace reshard {
namespace {

constexpr std::size_t kMaxIoBytes = std::size_t{1} << 30;  // Linux moves at most 2 GiB a call

/// Owns one descriptor.
class LocalFile final : public Source, public Sink {
 public:
  LocalFile(int fd, std::filesystem::path path, std::uint64_t size_bytes)
      : fd_(fd), path_(std::move(path)), size_bytes_(size_bytes) {}
  LocalFile(const LocalFile&) = delete;
  LocalFile& operator=(const LocalFile&) = delete;
  ~LocalFile() override { ::close(fd_); }

  std::uint64_t size_bytes() const override { return size_bytes_; }

  void read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const override {
    while (!out.empty()) {
      const ssize_t got = ::pread(fd_, out.data(), std::min(out.size(), kMaxIoBytes), static_cast<off_t>(offset_bytes));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw system_error(errno, "cannot read", path_).at_byte(offset_bytes);
      if (got == 0)
        throw Error(ErrorKind::kIo, "the file ends here, though it was longer when it was opened")
            .in(path_)
            .at_byte(offset_bytes)
            .hint("another process has cut it; run again when nothing writes to it");
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

  void sync() override {
    if (::fsync(fd_) != 0) throw system_error(errno, "cannot flush to disk", path_);
  }

 private:
  int fd_;
  std::filesystem::path path_;
  std::uint64_t size_bytes_;
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

  std::unique_ptr<Sink> create(const std::filesystem::path& path, std::uint64_t size_bytes) override {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) throw system_error(errno, "cannot create", path);
    auto file = std::make_unique<LocalFile>(fd, path, size_bytes);
    if (size_bytes == 0) return file;
    // Reserving the blocks finds a full disk or a quota before the first byte is moved. A file system that cannot
    // reserve gets a sparse file of the right length instead.
    if (::fallocate(fd, 0, 0, static_cast<off_t>(size_bytes)) == 0) return file;
    if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL)
      throw system_error(errno, "cannot reserve " + format_bytes(size_bytes), path);
    if (::ftruncate(fd, static_cast<off_t>(size_bytes)) != 0)
      throw system_error(errno, "cannot reserve " + format_bytes(size_bytes), path);
    return file;
  }

  std::unique_ptr<Sink> reopen(const std::filesystem::path& path) override {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) throw system_error(errno, "cannot open for writing", path);
    return std::make_unique<LocalFile>(fd, path, 0);
  }
};

}  // namespace

Storage& local_storage() {
  static LocalStorage storage;
  return storage;
}

bool path_exists(const std::filesystem::path& path) {
  std::error_code error;
  const bool exists = std::filesystem::exists(path, error);
  if (error == std::errc::permission_denied) throw system_error(EACCES, "cannot look at it", path);
  return exists && !error;
}

std::filesystem::path resolved_path(const std::filesystem::path& path) {
  const std::filesystem::path full = std::filesystem::weakly_canonical(std::filesystem::absolute(path));
  return full.filename().empty() ? full.parent_path() : full;
}

std::string read_text_file(const std::filesystem::path& path, std::uint64_t cap_bytes) {
  const auto source = local_storage().open(path);
  if (source->size_bytes() > cap_bytes)
    throw Error(ErrorKind::kBadInput, "is " + format_bytes(source->size_bytes()) + ", which is more than the " +
                                          format_bytes(cap_bytes) + " such a file can sensibly have")
        .in(path);
  std::string text(source->size_bytes(), '\0');
  source->read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace reshard
