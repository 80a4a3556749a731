#include "reshard/engine/publish.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/paths.h"
#include "reshard/io/local_storage.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

void rename_entry(const fs::path& from, const fs::path& to, unsigned flags) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) != 0)
    throw system_error(errno, "cannot rename to", to);
}

/// Whether the file system could not do the rename in one step (NFS and others know no flags).
bool lacks_flags(int errno_value) {
  return errno_value == EINVAL || errno_value == ENOSYS || errno_value == ENOTSUP;
}

/// Renames to a name that nothing has; what appeared there meanwhile is not replaced where the file system can tell.
void rename_new(const fs::path& from, const fs::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return;
  if (errno == EEXIST)
    throw Error(ErrorKind::kBadInput, "appeared while the outputs were written, and is not replaced")
        .in(to)
        .hint("another run may have made it");
  if (!lacks_flags(errno)) throw system_error(errno, "cannot rename to", to);
  rename_entry(from, to, 0);
}

int open_directory(const fs::path& path) {
  return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

using Flush = int (*)(int fd);

/// Directories whose entries are to be on stable storage. They are opened before they get them, so that flushing them
/// needs nothing more that may be denied. One that may be written to but not read cannot be opened: then the whole file
/// system is flushed.
class FlushedDirectories {
 public:
  /// \param inside  a directory on their file system that can be opened.
  /// \throws Error kIo.
  FlushedDirectories(const std::set<fs::path>& directories, const fs::path& inside, Flush flush_one) {
    opened_.reserve(directories.size() + 1);
    try {
      bool all = true;
      for (const fs::path& path : directories) {
        const int failed = open(path, flush_one);
        if (failed != 0 && failed != EACCES) throw system_error(failed, "cannot open", path);
        all = all && failed == 0;
      }
      if (const int failed = all ? 0 : open(inside, ::syncfs)) throw system_error(failed, "cannot open", inside);
    } catch (...) {
      close();
      throw;
    }
  }
  FlushedDirectories(const FlushedDirectories&) = delete;
  FlushedDirectories& operator=(const FlushedDirectories&) = delete;
  ~FlushedDirectories() { close(); }

  /// \throws Error kIo or kNoSpace.
  void flush() const {
    for (const Opened& one : opened_)
      if (one.flush(one.fd) != 0 && !lacks_flags(errno)) throw system_error(errno, "cannot flush to disk", one.path);
  }

 private:
  struct Opened {
    fs::path path;
    Flush flush;
    int fd;
  };

  /// \returns 0 or an errno value.
  int open(const fs::path& path, Flush flush_it) {
    const int fd = open_directory(path);
    if (fd < 0) return errno;
    opened_.push_back({path, flush_it, fd});
    return 0;
  }
  void close() {
    for (const Opened& one : opened_) ::close(one.fd);
  }

  std::vector<Opened> opened_;
};

void flush_tree(const fs::path& root, Flush flush) {
  std::set<fs::path> directories{root};
  for (const auto& entry : fs::recursive_directory_iterator(root))
    if (entry.is_directory() && !entry.is_symlink()) directories.insert(entry.path());
  for (const fs::path& path : directories) FlushedDirectories({path}, root, flush).flush();
}

}  // namespace

Staging::Staging(const Job& job, FileSystem file_system) : Staging(job, file_system, Unmade{}) {
  final_ = resolved_path(job.output_directory);
  if (job.shares_directory) make_directories(final_);  // at once, for others to find
  output_existed_ = fs::is_directory(final_);
  if (output_existed_) {
    lock_ = open_directory(final_);
    const int kind = job.shares_directory ? LOCK_SH : LOCK_EX;
    if (lock_ >= 0 && ::flock(lock_, kind | LOCK_NB) != 0 && errno == EWOULDBLOCK)
      throw Error(ErrorKind::kIo, "another run is writing here").in(final_).hint("wait until it is done");
  }
  const fs::path home = output_existed_ ? final_ : final_.parent_path();
  make_directories(home);
  const std::string prefix = output_existed_ ? std::string(kStagingPrefix) : staging_prefix(final_);
  std::string name = (home / (prefix + "XXXXXX")).string();
  if (::mkdtemp(name.data()) == nullptr) throw system_error(errno, "cannot make a temporary directory", home);
  root_ = name;
  for (const fs::path& relative : output_files(job)) make_staged_folders(relative.parent_path());
}

Staging::~Staging() {
  std::error_code ignored;
  if (!root_.empty()) fs::remove_all(root_, ignored);
  if (lock_ >= 0) ::close(lock_);
  if (published_) return;
  for (auto it = made_directories_.rbegin(); it != made_directories_.rend(); ++it) fs::remove(*it, ignored);
}

/// Makes `directory` and those above it that are missing, and remembers which.
void Staging::make_directories(const fs::path& directory) {
  std::vector<fs::path> missing;
  for (fs::path path = directory; !fs::exists(path); path = path.parent_path()) missing.push_back(path);
  for (; !missing.empty(); missing.pop_back()) {
    const fs::path& path = missing.back();
    const bool inside = lies_inside(path, final_) && path != final_;
    if (make_directory(path, permissions_.directory(inside ? path.lexically_relative(final_) : fs::path())))
      made_directories_.push_back(path);
  }
}

void Staging::make_staged_folders(const fs::path& relative) {
  if (relative.empty() || fs::exists(root_ / relative)) return;
  make_staged_folders(relative.parent_path());
  make_directory(root_ / relative, permissions_.directory(relative));
}

std::vector<fs::path> Staging::entries_in_order() const {
  std::vector<fs::path> entries;
  for (const fs::path& relative : output_files(job_))
    if (!in_whole_folder(job_, relative)) entries.push_back(relative);
  for (const fs::path& folder : job_.whole_folders) entries.push_back(folder);
  return entries;
}

/// Swaps two entries: in one step where the file system can, by way of a third name where it cannot.
void Staging::exchange(const fs::path& staged, const fs::path& final) {
  const bool one_step = file_system_.exchange;
  if (one_step && ::renameat2(AT_FDCWD, staged.c_str(), AT_FDCWD, final.c_str(), RENAME_EXCHANGE) == 0) return;
  if (one_step && !lacks_flags(errno)) throw system_error(errno, "cannot rename to", final);
  const fs::path aside = staged.parent_path() / ".aside";  // no output is hidden
  rename_entry(final, aside, 0);
  try {
    rename_entry(staged, final, 0);
  } catch (...) {
    rename_entry(aside, final, 0);
    throw;
  }
  try {
    rename_entry(aside, staged, 0);
  } catch (...) {
    rename_entry(final, staged, 0);
    rename_entry(aside, final, 0);
    throw;
  }
}

void Staging::publish_entry(const fs::path& relative) {
  Step step{root_ / relative, final_ / relative, false};
  if (!fs::exists(fs::symlink_status(step.final))) {
    try {
      rename_new(step.staged, step.final);
    } catch (const Error&) {
      if (is_left_alone(job_, relative, step.staged, step.final)) return;  // it has come just now
      throw;
    }
    steps_.push_back(step);
    return;
  }
  if (is_left_alone(job_, relative, step.staged, step.final)) return;
  if (!job_.force)
    throw Error(ErrorKind::kBadInput, "appeared while the outputs were written, and is not replaced without `force`")
        .in(step.final);
  step.replaced = true;
  exchange(step.staged, step.final);
  steps_.push_back(step);
  if (in_whole_folder(job_, relative)) validate_only_ours(*job_.layout, step.staged, step.final);
}

/// Takes every step back. What cannot be taken back keeps the staging directory, which then holds the only copy.
void Staging::undo(const std::string& reason) {
  std::string kept;
  for (auto it = steps_.rbegin(); it != steps_.rend(); ++it) {
    try {
      if (it->replaced)
        exchange(it->final, it->staged);
      else
        rename_entry(it->final, it->staged, 0);
    } catch (const Error&) {
      kept += (kept.empty() ? "" : ", ") + it->final.filename().string();
    }
  }
  steps_.clear();
  if (kept.empty()) return;
  const fs::path home = std::exchange(root_, {});  // so that nothing in it is removed
  throw Error(ErrorKind::kIo, reason + "; and what it had replaced could not be put back: " + kept)
      .in(home)
      .hint("this directory holds what stood there before; move it back by hand");
}

/// The directories in which something gets its name.
std::set<fs::path> Staging::named_directories() const {
  std::set<fs::path> named;
  for (const fs::path& made : made_directories_) named.insert(made.parent_path());
  if (!output_existed_) named.insert(final_.parent_path());
  if (output_existed_)
    for (const fs::path& relative : entries_in_order()) named.insert((final_ / relative).parent_path());
  return named;
}

void Staging::give_names() {
  if (!output_existed_) {
    rename_new(root_, final_);
  } else {
    try {
      for (const fs::path& relative : entries_in_order()) publish_entry(relative);
    } catch (const std::exception& error) {
      undo(error.what());
      throw;
    }
  }
  published_ = true;
}

std::vector<std::string> Staging::publish(bool sync) {
  if (output_existed_)
    for (const fs::path& relative : entries_in_order()) make_directories((final_ / relative).parent_path());
  else
    set_permissions(root_, permissions_.directory());
  if (!sync) {
    give_names();
    return {};
  }
  flush_tree(root_, file_system_.flush);
  const FlushedDirectories named(named_directories(), root_, file_system_.flush);
  named.flush();  // what fails now fails before anything has its name
  give_names();
  try {
    named.flush();
  } catch (const Error& error) {
    return {fmt::format("the outputs are complete, but a crash of the machine may still lose them: {}", error.what())};
  }
  return {};
}

}  // namespace reshard
