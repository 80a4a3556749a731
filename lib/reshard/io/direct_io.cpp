#include "reshard/io/direct_io.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

namespace reshard {
namespace {

constexpr std::uint64_t kBufferBytes = std::uint64_t{1} << 20;

struct Free {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};

std::byte* aligned_buffer() {
  thread_local std::unique_ptr<std::byte, Free> buffer(
      static_cast<std::byte*>(std::aligned_alloc(kDirectPageBytes, kBufferBytes)));
  if (!buffer) throw std::bad_alloc();
  return buffer.get();
}

}  // namespace

std::unique_ptr<DirectFile> DirectFile::open(int fd, int access) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);  // what has the file's name now may be another
  const int direct = ::open(path.c_str(), access | O_DIRECT | O_CLOEXEC | O_NONBLOCK);
  if (direct < 0) return nullptr;
  return std::unique_ptr<DirectFile>(new DirectFile(direct));
}

DirectFile::~DirectFile() {
  ::close(fd_);
}

std::uint64_t DirectFile::read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const {
  std::byte* const buffer = aligned_buffer();
  std::uint64_t done = 0;
  while (done < out.size()) {
    const std::uint64_t at = offset_bytes + done;
    const std::uint64_t before = at % kDirectPageBytes;
    const std::uint64_t wanted = std::min<std::uint64_t>(kBufferBytes, direct_pages_up(before + out.size() - done));
    const ssize_t got = ::pread(fd_, buffer, wanted, static_cast<off_t>(at - before));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 || static_cast<std::uint64_t>(got) <= before) break;
    const std::uint64_t useful = std::min<std::uint64_t>(static_cast<std::uint64_t>(got) - before, out.size() - done);
    std::memcpy(out.data() + done, buffer + before, useful);
    done += useful;
  }
  return done;
}

std::uint64_t DirectFile::write_at(std::uint64_t offset_bytes, std::span<const std::byte> bytes) const {
  std::byte* const buffer = aligned_buffer();
  const std::uint64_t whole = bytes.size() / kDirectPageBytes * kDirectPageBytes;
  std::uint64_t done = 0;
  while (done < whole) {
    const std::uint64_t part = std::min(kBufferBytes, whole - done);
    std::memcpy(buffer, bytes.data() + done, part);
    const ssize_t put = ::pwrite(fd_, buffer, part, static_cast<off_t>(offset_bytes + done));
    if (put < 0 && errno == EINTR) continue;
    // What the disk took of a page is not known to be whole: it is written again in the ordinary way.
    const std::uint64_t taken = put < 0 ? 0 : static_cast<std::uint64_t>(put) / kDirectPageBytes * kDirectPageBytes;
    done += taken;
    if (taken < part) break;
  }
  return done;
}

}  // namespace reshard
