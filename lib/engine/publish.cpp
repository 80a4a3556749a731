#include "reshard/engine/publish.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "reshard/base/error.h"
#include "reshard/base/paths.h"
#include "reshard/base/storage.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/shards.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using FileId = std::pair<dev_t, ino_t>;

std::optional<FileId> file_id(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return FileId{status.st_dev, status.st_ino};
}

bool in_whole_folder(const Job& job, const fs::path& relative) {
  return std::any_of(job.whole_folders.begin(), job.whole_folders.end(),
                     [&](const fs::path& folder) { return lies_inside(relative, folder); });
}

/// Every output file, relative to the output directory, in publishing order.
std::vector<fs::path> output_files(const Job& job) {
  std::vector<fs::path> files;
  for (const CopiedFile& file : job.copied_files) files.push_back(file.path);
  for (const LayoutFile& file : job.target.files) files.push_back(file.path);
  for (const TextFile& file : job.text_files) files.push_back(file.path);
  return files;
}

/// Everything in a shards folder has a name that this program writes.
void prove_only_ours(const fs::path& folder, const fs::path& shown_as) {
  const std::vector<std::string> foreign = foreign_entries(folder);
  if (!foreign.empty())
    throw Error(ErrorKind::kBadInput,
                "would be replaced as a whole, but holds what this program did not write: " + list_names(foreign))
        .in(shown_as)
        .hint("move these away or choose another OUT_DIR; nothing foreign is ever deleted");
}

fs::path nearest_existing(fs::path path) {
  while (!fs::exists(path) && path != path.parent_path()) path = path.parent_path();
  return path;
}

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

void sync_directory(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw system_error(errno, "cannot open", path);
  const int failed = ::fsync(fd) != 0 ? errno : 0;
  ::close(fd);
  if (failed != 0 && !lacks_flags(failed)) throw system_error(failed, "cannot flush to disk", path);
}

void sync_tree(const fs::path& root) {
  for (const auto& entry : fs::recursive_directory_iterator(root))
    if (entry.is_directory() && !entry.is_symlink()) sync_directory(entry.path());
  sync_directory(root);
}

void make_directory(const fs::path& path) {
  if (::mkdir(path.c_str(), 0777) != 0) throw system_error(errno, "cannot make the directory", path);
}

/// A folder that is replaced as a whole holds none of the inputs.
void prove_no_input_inside(const Job& job, const fs::path& folder) {
  const fs::path resolved = resolved_path(folder);
  for (const LayoutFile& file : job.source.files) {
    if (lies_inside(resolved_path(file.path), resolved))
      throw Error(ErrorKind::kUsage, "holds the inputs and would be replaced")
          .in(folder)
          .hint("choose another OUT_DIR");
  }
}

}  // namespace

void prove_output(const Job& job) {
  const fs::path directory = resolved_path(job.output_directory);
  const fs::path existing = nearest_existing(directory);
  if (!fs::is_directory(existing))
    throw Error(ErrorKind::kBadInput, "is not a directory, so no outputs can be made in it").in(existing);
  if (::access(existing.c_str(), W_OK | X_OK) != 0) throw system_error(errno, "cannot write here", existing);

  if (fs::is_symlink(job.output_directory) && !fs::exists(job.output_directory))
    throw Error(ErrorKind::kBadInput, "is a link to nowhere").in(job.output_directory);

  std::set<FileId> inputs;
  for (const LayoutFile& file : job.source.files)
    if (const auto id = file_id(file.path)) inputs.insert(*id);
  for (const CopiedFile& file : job.copied_files)
    if (const auto id = file_id(file.source)) inputs.insert(*id);

  std::vector<std::string> present;
  std::set<fs::path> outputs(job.whole_folders.begin(), job.whole_folders.end());
  for (const fs::path& relative : output_files(job)) {
    if (!outputs.insert(relative).second)
      throw Error(ErrorKind::kBadInput, "two outputs would have this name")
          .in(directory / relative)
          .hint("a file of the model has the name of one that is to be written; move it away");
    const fs::path final = directory / relative;
    const auto id = file_id(final);
    if (id && inputs.count(*id))
      throw Error(ErrorKind::kUsage, "is an input and would be written").in(final).hint("choose another OUT_DIR");
    if (in_whole_folder(job, relative) || !fs::exists(fs::symlink_status(final))) continue;
    if (fs::is_directory(final))
      throw Error(ErrorKind::kBadInput, "is a directory, but a file is to be written there").in(final);
    present.push_back(relative.string());
  }
  for (const fs::path& folder : job.whole_folders) {
    if (!fs::exists(fs::symlink_status(directory / folder))) continue;
    if (fs::is_symlink(directory / folder) || !fs::is_directory(directory / folder))
      throw Error(ErrorKind::kBadInput, "is not a folder that this program made").in(directory / folder);
    prove_no_input_inside(job, directory / folder);
    present.push_back(folder.string() + "/");
    if (job.force) prove_only_ours(directory / folder, directory / folder);
  }
  if (!present.empty() && !job.force)
    throw Error(ErrorKind::kBadInput,
                fmt::format("{} already there and would be replaced: {}",
                            present.size() == 1 ? "one output is" : "some outputs are", list_names(present)))
        .in(directory)
        .hint("pass --force to replace them, or choose another OUT_DIR");
}

std::vector<fs::path> stale_stagings(const Job& job) {
  const fs::path output = resolved_path(job.output_directory);
  std::vector<fs::path> stale;
  const auto look = [&](const fs::path& directory, const std::string& prefix) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(directory, ignored))
      if (entry.path().filename().string().starts_with(prefix)) stale.push_back(entry.path());
  };
  look(output.parent_path(), "." + output.filename().string() + ".reshard-");
  look(output, ".reshard-");
  std::sort(stale.begin(), stale.end());
  return stale;
}

OutputSpace output_space(const Job& job) {
  OutputSpace space;
  space.needed_bytes = job.output_bytes();
  space.file_system = nearest_existing(resolved_path(job.output_directory));
  struct statvfs status {};
  if (::statvfs(space.file_system.c_str(), &status) != 0)
    throw system_error(errno, "cannot ask for free space", space.file_system);
  space.free_bytes = static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
  return space;
}

void prove_space(const OutputSpace& space) {
  if (space.needed_bytes <= space.free_bytes) return;
  throw Error(ErrorKind::kNoSpace, fmt::format("the outputs need {} ({} bytes), but only {} ({} bytes) are free",
                                               format_bytes(space.needed_bytes), space.needed_bytes,
                                               format_bytes(space.free_bytes), space.free_bytes))
      .in(space.file_system)
      .hint("free some space or choose an output directory on another file system");
}

Staging::Staging(const Job& job, Renames renames) : Staging(job, renames, Unmade{}) {
  final_ = resolved_path(job.output_directory);
  output_existed_ = fs::is_directory(final_);
  if (output_existed_) {
    lock_ = ::open(final_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock_ >= 0 && ::flock(lock_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
      throw Error(ErrorKind::kIo, "another run is writing here").in(final_).hint("wait until it is done");
  }
  const fs::path home = output_existed_ ? final_ : final_.parent_path();
  make_directories(home);
  std::string name =
      (home / (output_existed_ ? ".reshard-XXXXXX" : "." + final_.filename().string() + ".reshard-XXXXXX")).string();
  if (::mkdtemp(name.data()) == nullptr) throw system_error(errno, "cannot make a temporary directory", home);
  root_ = name;
  const mode_t mask = ::umask(0);  // mkdtemp makes it private; the outputs are not
  ::umask(mask);
  ::chmod(root_.c_str(), 0777 & ~mask);
  for (const fs::path& relative : output_files(job)) fs::create_directories(root_ / relative.parent_path());
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
    make_directory(missing.back());
    made_directories_.push_back(missing.back());
  }
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
  if (renames_.exchange && ::renameat2(AT_FDCWD, staged.c_str(), AT_FDCWD, final.c_str(), RENAME_EXCHANGE) == 0) return;
  if (renames_.exchange && !lacks_flags(errno)) throw system_error(errno, "cannot rename to", final);
  const fs::path aside = staged.parent_path() / (".aside-" + staged.filename().string());
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
  make_directories(step.final.parent_path());
  if (!fs::exists(fs::symlink_status(step.final))) {
    rename_new(step.staged, step.final);
    steps_.push_back(step);
    return;
  }
  if (!job_.force)
    throw Error(ErrorKind::kBadInput, "appeared while the outputs were written, and is not replaced without --force")
        .in(step.final);
  step.replaced = true;
  exchange(step.staged, step.final);
  steps_.push_back(step);
  if (in_whole_folder(job_, relative)) prove_only_ours(step.staged, step.final);
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

void Staging::publish() {
  sync_tree(root_);
  if (!output_existed_) {
    rename_new(root_, final_);
    published_ = true;
    sync_directory(final_.parent_path());
    return;
  }
  try {
    for (const fs::path& relative : entries_in_order()) publish_entry(relative);
  } catch (const std::exception& error) {
    undo(error.what());
    throw;
  }
  published_ = true;
  sync_directory(final_);
}

}  // namespace reshard
