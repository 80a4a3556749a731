#include "path_facts.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/io/open_store.h"

namespace reshard::cli {
namespace {

namespace fs = std::filesystem;

/// A new directory with two files of 8 KiB, deleted at the end.
class Trial {
 public:
  explicit Trial(const fs::path& directory) {
    std::string name = (directory / ".reshard-doctor-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw system_error(errno, "cannot create a directory", directory);
    path_ = name;
    a_ = ::open((path_ / "a").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    b_ = ::open((path_ / "b").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;
  ~Trial() {
    for (const int fd : {a_, b_})
      if (fd >= 0) ::close(fd);
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }

  /// \throws Error kIo, such as for a full disk.
  void fill() const {
    const std::string bytes(8192, 'x');
    for (const int fd : {a_, b_})
      for (std::size_t done = 0; done < bytes.size();) {
        const ssize_t count = ::write(fd, bytes.data() + done, bytes.size() - done);
        if (count < 0) throw system_error(errno, "cannot write files", path_.parent_path());
        done += static_cast<std::size_t>(count);
      }
  }
  bool exchange() const { return rename("a", "b", RENAME_EXCHANGE); }
  bool no_replace() const { return rename("a", "c", RENAME_NOREPLACE) && rename("c", "a", 0); }
  bool copy_range() const {
    off_t from = 0, to = 0;
    return ::copy_file_range(a_, &from, b_, &to, 4096, 0) == 4096;
  }
  bool reserve() const { return ::fallocate(a_, 0, 0, 65536) == 0; }
  bool write_back() const { return ::sync_file_range(a_, 0, 4096, SYNC_FILE_RANGE_WRITE) == 0; }
  bool flush() const {
    const int fd = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool works = fd >= 0 && ::fsync(fd) == 0;
    const int number = errno;
    if (fd >= 0) ::close(fd);
    errno = number;
    return works;
  }
  bool lock() const {
    struct flock range {};
    range.l_type = F_WRLCK;
    range.l_whence = SEEK_SET;
    return ::fcntl(a_, F_OFD_SETLK, &range) == 0;
  }

 private:
  bool rename(const char* from, const char* to, unsigned flags) const {
    return ::renameat2(AT_FDCWD, (path_ / from).c_str(), AT_FDCWD, (path_ / to).c_str(), flags) == 0;
  }

  fs::path path_;
  int a_ = -1, b_ = -1;
};

struct Operation {
  const char* name;
  bool (Trial::*works)() const;  // sets errno if not
  const char* otherwise;         // what a run does without it
};
constexpr Operation kOperations[] = {
    {"renameat2_exchange", &Trial::exchange, "--force moves old outputs away before it moves new ones in"},
    {"renameat2_noreplace", &Trial::no_replace, "outputs are renamed after a check that nothing is there"},
    {"locks", &Trial::lock,
     "killed runs cannot be distinguished from running ones: --resume and --clean have no effect"},
    {"fallocate", &Trial::reserve, "a full disk is noticed while outputs are written, not before"},
    {"copy_file_range", &Trial::copy_range, "bytes are read and written"},
    {"sync_file_range", &Trial::write_back, "outputs are flushed at the end"},
    {"fsync_of_directories", &Trial::flush, "names of outputs may be lost if the machine crashes"}};

Document operations_in(const fs::path& directory) {
  Document json = Document::object();
  const Trial trial(directory);
  trial.fill();
  for (const Operation& operation : kOperations) {
    errno = 0;
    json[operation.name] = (trial.*operation.works)()
                               ? std::string("works")
                               : std::generic_category().message(errno) + ": " + operation.otherwise;
  }
  return json;
}

/// Mount point and type of the file system, from the longest mount point that contains `path`; "unknown" without /proc.
std::pair<std::string, std::string> mount_of(const fs::path& path) {
  std::pair<std::string, std::string> found{"", "unknown"};
  std::ifstream in("/proc/self/mountinfo");
  for (std::string line; std::getline(in, line);) {
    const std::vector<std::string> words = split(line, ' ');
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 5 || dash == words.end() || dash + 1 == words.end()) continue;
    const std::string& point = words[4];  // \040 for a space: such a mount point is not recognised
    const bool contains = point == "/" || path == point || path.string().starts_with(point + "/");
    if (contains && point.size() >= found.first.size()) found = {point, dash[1]};  // later mounts hide earlier ones
  }
  return found;
}

}  // namespace

Document path_facts(const fs::path& path) {
  Document json;
  json["path"] = path.string();
  Document operations = Document::object();
  std::string wrong;
  try {
    Files& files = all_files();
    if (files.kind_of(path) == FileKind::kNone) throw system_error(ENOENT, "cannot find it", path);
    fs::path directory = files.resolve(path);
    if (!files.is_directory(directory)) directory = directory.parent_path();
    json["directory"] = directory.string();
    std::tie(json["mount_point"], json["file_system"]) = mount_of(directory);
    struct statvfs status {};
    if (::statvfs(directory.c_str(), &status) != 0) throw system_error(errno, "cannot query the free space", directory);
    json["free_bytes"] = static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
    operations = operations_in(directory);
  } catch (const Error& error) {
    wrong = error.what();
  }
  json["writable"] = wrong.empty();
  if (!wrong.empty()) json["error"] = wrong;
  json["operations"] = std::move(operations);
  return json;
}

}  // namespace reshard::cli
