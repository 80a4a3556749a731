#include "reshard/io/storage.h"

#include <sys/stat.h>

#include <cerrno>

#include "reshard/base/error.h"

namespace reshard {

std::unique_ptr<MappedRange> Source::map(std::uint64_t, std::uint64_t) const {
  return nullptr;
}

void Sink::write_gathered(std::uint64_t offset_bytes, std::span<const std::span<const std::byte>> parts) {
  for (const std::span<const std::byte> part : parts) {
    write_at(offset_bytes, part);
    offset_bytes += part.size();
  }
}

bool Sink::copy_pays(const Source&, std::uint64_t, std::uint64_t) const {
  return false;
}

bool Sink::copy_from(const Source&, std::uint64_t, std::uint64_t, std::uint64_t) {
  return false;
}

void Sink::start_writeback(std::uint64_t, std::uint64_t) {}

void Sink::wait_for_writeback(std::uint64_t, std::uint64_t) {}

bool path_exists(const std::filesystem::path& path) {
  std::error_code error;
  const bool exists = std::filesystem::exists(path, error);
  if (error == std::errc::permission_denied) throw system_error(EACCES, "cannot look at it", path);
  return exists && !error;
}

FileStamp stamp_of(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return {};
  constexpr std::int64_t kSecond = 1'000'000'000;
  return {status.st_dev, status.st_ino, static_cast<std::uint64_t>(status.st_size),
          status.st_mtim.tv_sec * kSecond + status.st_mtim.tv_nsec};
}

std::filesystem::path resolved_path(const std::filesystem::path& path) {
  const std::filesystem::path full = std::filesystem::weakly_canonical(std::filesystem::absolute(path));
  return full.filename().empty() ? full.parent_path() : full;
}

}  // namespace reshard
