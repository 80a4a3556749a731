#include "reshard/engine/permissions.h"

#include <sys/stat.h>

#include <cerrno>
#include <set>

#include "reshard/base/error.h"
#include "reshard/base/paths.h"
#include "reshard/base/storage.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kAll = 0777;
constexpr mode_t kOwner = 0700;

/// Group and others: their bits, and the one that lets them look for names in a directory.
struct Class {
  mode_t bits;
  mode_t search;
};
constexpr Class kClasses[] = {{0070, 0010}, {0007, 0001}};

mode_t mode_of(const fs::path& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? status.st_mode & kAll : kOwner;
}

mode_t bits_that_umask_leaves() {
  const mode_t mask = ::umask(077);  // it can only be read by setting it; if another thread makes a file now, privately
  ::umask(mask);
  return kAll & ~mask;
}

}  // namespace

Permissions::Permissions(const Job& job) : umask_left_(bits_that_umask_leaves()) {
  model_directory_ = resolved_path(job.model_directory.empty() ? job.source_directory : job.model_directory);
  std::set<fs::path> parents;
  for (const LayoutFile& file : job.source.files) {
    weights_ &= mode_of(file.path);
    parents.insert(file.path.parent_path());
  }
  std::set<fs::path> directories{model_directory_};
  for (const fs::path& parent : parents)
    for (fs::path path = resolved_path(parent.empty() ? "." : parent); directories.insert(path).second;)
      if (lies_inside(path, model_directory_)) path = path.parent_path();
  for (const fs::path& path : directories) directories_ &= mode_of(path);
  look_at_folders(job);
  look_at_output(job);
  weights_ = (weights_ & umask_left_ & shown_) | 0600;
}

/// The folders that copied files lie in.
void Permissions::look_at_folders(const Job& job) {
  for (const CopiedFile& file : job.copied_files) {
    fs::path source = file.source.parent_path();
    for (fs::path relative = file.path.parent_path(); !relative.empty(); relative = relative.parent_path()) {
      if (!folders_.emplace(relative, mode_of(source)).second) break;
      source = source.parent_path();
    }
  }
}

/// A new output directory hides what the input's hides. One that is there keeps its permissions, so that files have to
/// hide themselves.
void Permissions::look_at_output(const Job& job) {
  std::error_code ignored;
  if (!fs::is_directory(job.output_directory, ignored)) return;
  const mode_t output = mode_of(job.output_directory);
  for (const Class& one : kClasses)
    if ((output & one.search) != 0 && (directories_ & one.search) == 0) shown_ &= ~one.bits;
}

mode_t Permissions::directory(const fs::path& relative) const {
  const auto own = folders_.find(relative);
  return (directories_ & umask_left_ & (own == folders_.end() ? kAll : own->second)) | kOwner;
}

mode_t Permissions::text(const fs::path& relative) const {
  std::error_code ignored;
  const fs::path own = model_directory_ / relative;
  return weights_ & ((fs::exists(own, ignored) ? mode_of(own) : kAll) | kOwner);
}

mode_t Permissions::copy(const CopiedFile& file) const {
  return mode_of(file.source) & umask_left_ & shown_;
}

void set_permissions(const fs::path& path, mode_t mode) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) throw system_error(errno, "cannot look at it", path);
  if ((status.st_mode & kAll) == mode) return;
  if (::chmod(path.c_str(), (status.st_mode & 07000) | mode) == 0) return;
  if (errno != EPERM && errno != ENOTSUP && errno != ENOSYS)
    throw system_error(errno, "cannot change its permissions", path);
}

bool make_directory(const fs::path& path, mode_t mode) {
  if (::mkdir(path.c_str(), mode) == 0) return true;
  if (errno == EEXIST && fs::is_directory(path)) return false;  // another run has made it meanwhile
  throw system_error(errno, "cannot make the directory", path);
}

}  // namespace reshard
