#include "reshard/engine/permissions.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/paths.h"
#include "reshard/io/local_storage.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kAll = 0777;
constexpr mode_t kOwner = 0700;

AllowedMode allowed_by(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return {kOwner, {}, kAll};
  AllowedMode allowed{status.st_mode & kAll, {}, kAll};
  if (allowed.for_any_group() != allowed.bits) allowed.groups.insert(status.st_gid);
  return allowed;
}

mode_t bits_that_umask_leaves() {
  const mode_t mask = ::umask(077);  // it can only be read by setting it; if another thread makes a file now, privately
  ::umask(mask);
  return kAll & ~mask;
}

}  // namespace

AllowedMode& AllowedMode::operator&=(const AllowedMode& other) {
  bits &= other.bits;
  groups.insert(other.groups.begin(), other.groups.end());
  kept &= other.kept;
  return *this;
}

mode_t AllowedMode::for_group(gid_t group) const {
  const bool is_inputs = std::all_of(groups.begin(), groups.end(), [&](gid_t one) { return one == group; });
  return is_inputs ? bits & kept : for_any_group();
}

mode_t AllowedMode::for_any_group() const {
  const mode_t others_as_group = (bits & 0007) << 3;
  return bits & (0707 | others_as_group) & kept;
}

Permissions::Permissions(const Job& job) : umask_left_(bits_that_umask_leaves()) {
  model_directory_ = resolved_path(job.model_directory.empty() ? job.source_directory : job.model_directory);
  for (const TensorFile& file : job.source.files) weights_ &= allowed_by(file.path);
  look_at_directories(job);
  look_at_folders(job);
  look_at_output(job);
  weights_ &= shown_;
  weights_.bits |= 0600;
  weights_.kept = umask_left_ | 0600;
}

/// The model's directory, and those of all inputs that come from elsewhere than their outputs' place in it.
void Permissions::look_at_directories(const Job& job) {
  const auto resolved = [](const fs::path& path) { return resolved_path(path.empty() ? "." : path); };
  std::set<fs::path> parents;
  for (const TensorFile& file : job.source.files) parents.insert(file.path.parent_path());
  std::set<std::pair<fs::path, fs::path>> moves;  // of other files, from one directory to another
  for (const CopiedFile& file : job.copied_files) moves.emplace(file.source.parent_path(), file.path.parent_path());
  for (const TextFile& file : job.text_files)
    if (!file.source.empty()) moves.emplace(file.source.parent_path(), file.path.parent_path());
  for (const auto& [from, to] : moves)
    if (resolved(from) != resolved(model_directory_ / to)) parents.insert(from);
  std::set<fs::path> directories{model_directory_};
  for (const fs::path& parent : parents)
    for (fs::path path = resolved(parent); directories.insert(path).second;)
      if (lies_inside(path, model_directory_)) path = path.parent_path();
  for (const fs::path& path : directories) directories_ &= allowed_by(path);
}

/// The folders that copied files lie in.
void Permissions::look_at_folders(const Job& job) {
  for (const CopiedFile& file : job.copied_files) {
    fs::path source = file.source.parent_path();
    for (fs::path relative = file.path.parent_path(); !relative.empty(); relative = relative.parent_path()) {
      if (!folders_.emplace(relative, allowed_by(source)).second) break;
      source = source.parent_path();
    }
  }
}

/// A new output directory hides what the input's hides. One that is there keeps its permissions, so that files have to
/// hide themselves.
void Permissions::look_at_output(const Job& job) {
  struct stat output {};
  if (::stat(job.output_directory.c_str(), &output) != 0 || !S_ISDIR(output.st_mode)) return;
  const mode_t opened = output.st_mode & ~directories_.for_group(output.st_gid);
  if ((opened & 0010) != 0) shown_.bits &= 0700;  // the directory's group may be others to a file of another group
  if ((opened & 0001) != 0) {
    shown_.bits &= 0770;
    shown_.groups = directories_.groups;
  }
}

AllowedMode Permissions::directory(const fs::path& relative) const {
  AllowedMode allowed = directories_;
  const auto own = folders_.find(relative);
  if (own != folders_.end()) allowed &= own->second;
  allowed.bits |= kOwner;
  allowed.kept = umask_left_ | kOwner;
  return allowed;
}

AllowedMode Permissions::text(const TextFile& file) const {
  std::error_code ignored;
  const fs::path source = file.source.empty() ? model_directory_ / file.path : file.source;
  AllowedMode allowed = weights_;
  if (file.source.empty() && !fs::exists(source, ignored)) return allowed;
  allowed &= allowed_by(source);
  allowed.bits |= 0600;
  return allowed;
}

AllowedMode Permissions::copy(const CopiedFile& file) const {
  AllowedMode allowed = allowed_by(file.source);
  allowed &= shown_;
  allowed.kept = umask_left_;
  return allowed;
}

void set_permissions(const fs::path& path, const AllowedMode& allowed) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) throw system_error(errno, "cannot look at it", path);
  const mode_t mode = allowed.for_group(status.st_gid);
  if ((status.st_mode & kAll) == mode) return;
  if (::chmod(path.c_str(), (status.st_mode & 07000) | mode) == 0) return;
  if (errno != EPERM && errno != ENOTSUP && errno != ENOSYS)
    throw system_error(errno, "cannot change its permissions", path);
}

bool make_directory(const fs::path& path, const AllowedMode& allowed) {
  if (::mkdir(path.c_str(), allowed.for_any_group()) == 0) {
    if (!allowed.groups.empty()) set_permissions(path, allowed);  // its group is known only now
    return true;
  }
  if (errno == EEXIST && fs::is_directory(path)) return false;  // another run has made it meanwhile
  throw system_error(errno, "cannot make the directory", path);
}

}  // namespace reshard
