#include "machine.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

#include "process.h"

namespace reshard::bench {
namespace {

namespace fs = std::filesystem;

struct FileSystemRow {
  std::uint32_t magic;  // statfs(2)
  const char* name;
};
constexpr FileSystemRow kFileSystems[] = {
    {0xef53, "ext4"},        {0x58465342, "xfs"}, {0x9123683e, "btrfs"}, {0x01021994, "tmpfs"},
    {0x794c7630, "overlay"}, {0x2fc12fc1, "zfs"}, {0x6969, "nfs"},       {0x01021997, "9p"},
};

std::string file_system_of(const fs::path& directory) {
  struct statfs facts {};
  if (::statfs(directory.c_str(), &facts) != 0)
    throw std::system_error(errno, std::generic_category(), directory.string());
  const auto magic = static_cast<std::uint32_t>(facts.f_type);
  for (const FileSystemRow& row : kFileSystems)
    if (row.magic == magic) return row.name;
  return fmt::format("file system {:#x}", magic);
}

std::string cpu_model() {
  std::ifstream facts("/proc/cpuinfo");
  for (std::string line; std::getline(facts, line);)
    if (line.starts_with("model name")) return line.substr(std::min(line.size(), line.find(':') + 2));
  return "unknown CPU";
}

std::string today() {
  const time_t now = ::time(nullptr);
  struct tm parts {};
  ::gmtime_r(&now, &parts);
  return fmt::format("{:04}-{:02}-{:02}", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday);
}

std::uint64_t memory_bytes(int pages_name) {
  return static_cast<std::uint64_t>(::sysconf(pages_name)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

class Descriptor {
 public:
  Descriptor(const fs::path& path, int flags) : number_(::open(path.c_str(), flags | O_CLOEXEC)) {
    if (number_ < 0) throw std::system_error(errno, std::generic_category(), path.string());
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { ::close(number_); }
  int number() const { return number_; }

 private:
  int number_;
};

/// Whether the device below `directory` has pending requests; false if the device is unknown, as for tmpfs.
bool device_is_busy(const fs::path& directory) {
  struct stat facts {};
  if (::stat(directory.c_str(), &facts) != 0) return false;
  std::ifstream in(fmt::format("/sys/dev/block/{}:{}/inflight", major(facts.st_dev), minor(facts.st_dev)));
  unsigned reads = 0;
  unsigned writes = 0;
  return (in >> reads >> writes) && reads + writes > 0;
}

}  // namespace

Machine machine_facts(const fs::path& directory) {
  utsname system{};
  ::uname(&system);
  return {cpu_model(),
          std::max(1u, std::thread::hardware_concurrency()),
          memory_bytes(_SC_PHYS_PAGES),
          fmt::format("{} {}", system.sysname, system.release),
          file_system_of(directory),
          today()};
}

WorkDir::WorkDir(const fs::path& parent) {
  std::string name = (parent / "reshard-bench-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::system_error(errno, std::generic_category(), name);
  path_ = name;
}

WorkDir::~WorkDir() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void WorkDir::retire(const fs::path& directory) const {
  for (const auto& entry : fs::recursive_directory_iterator(directory))
    if (entry.is_regular_file()) fs::resize_file(entry.path(), 0);
  fs::rename(directory, path_ / fmt::format("retired-{}", retired_++));
}

std::uint64_t free_bytes(const fs::path& directory) {
  return fs::space(directory).available;
}

std::uint64_t tree_bytes(const fs::path& directory) {
  std::uint64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(directory))
    if (entry.is_regular_file()) bytes += entry.file_size();
  return bytes;
}

void read_tree(const fs::path& directory) {
  std::vector<char> buffer(1 << 20);
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    const Descriptor file(entry.path(), O_RDONLY);
    while (::read(file.number(), buffer.data(), buffer.size()) > 0) throw_if_stopped();
  }
}

void settle(const fs::path& directory) {
  constexpr unsigned kLooks = 500;      // five seconds: other processes may keep the device busy
  constexpr unsigned kQuietInARow = 3;  // a queue may seem idle between two requests
  ::syncfs(Descriptor(directory, O_RDONLY | O_DIRECTORY).number());
  unsigned quiet = 0;
  for (unsigned look = 0; look < kLooks && quiet < kQuietInARow; ++look) {
    quiet = device_is_busy(directory) ? 0 : quiet + 1;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

MemoryFiller::MemoryFiller(const fs::path& directory) : size_bytes_(2 * memory_bytes(_SC_PHYS_PAGES)) {
  const fs::path path = directory / "fill";
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file_ < 0 || ::ftruncate(file_, static_cast<off_t>(size_bytes_)) != 0)
    throw std::system_error(errno, std::generic_category(), path.string());
}

MemoryFiller::~MemoryFiller() {
  ::close(file_);
}

void MemoryFiller::fill() {
  // Until free memory no longer shrinks: the kernel keeps some free regardless.
  constexpr std::uint64_t kStepBytes = std::uint64_t{256} << 20;
  std::vector<char> buffer(1 << 20);
  for (std::uint64_t free = memory_bytes(_SC_AVPHYS_PAGES);;) {
    for (std::uint64_t read = 0; read < kStepBytes; read += buffer.size()) {
      throw_if_stopped();
      if (::pread(file_, buffer.data(), buffer.size(), static_cast<off_t>(at_bytes_)) <= 0) return;
      at_bytes_ = (at_bytes_ + buffer.size()) % size_bytes_;
    }
    const std::uint64_t still_free = memory_bytes(_SC_AVPHYS_PAGES);
    if (still_free + kStepBytes / 4 > free) return;
    free = still_free;
  }
}

void drop_caches() {
  std::ofstream out("/proc/sys/vm/drop_caches");
  out << "3\n" << std::flush;
  if (!out) throw std::runtime_error("cannot write /proc/sys/vm/drop_caches: --cold needs root");
}

}  // namespace reshard::bench
