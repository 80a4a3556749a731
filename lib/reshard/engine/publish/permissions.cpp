#include "reshard/engine/publish/permissions.h"

#include <algorithm>
#include <set>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/paths.h"
#include "reshard/engine/publish/output.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kAll = 0777;
constexpr std::uint32_t kOwner = 0700;

}  // namespace

AllowedMode& AllowedMode::operator&=(const AllowedMode& other) {
  bits &= other.bits;
  groups.insert(other.groups.begin(), other.groups.end());
  kept &= other.kept;
  return *this;
}

std::uint32_t AllowedMode::for_group(std::uint32_t group) const {
  const bool is_inputs = std::all_of(groups.begin(), groups.end(), [&](std::uint32_t one) { return one == group; });
  return is_inputs ? bits & kept : for_any_group();
}

std::uint32_t AllowedMode::for_any_group() const {
  const std::uint32_t others_as_group = (bits & 0007) << 3;
  return bits & (0707 | others_as_group) & kept;
}

AllowedMode Permissions::allowed_by(const fs::path& path) const {
  const auto access = stores_.target().directories().access(path);
  if (!access) return {kOwner, {}, kAll};
  AllowedMode allowed{access->bits, {}, kAll};
  if (allowed.for_any_group() != allowed.bits) allowed.groups.insert(access->group);
  return allowed;
}

Permissions::Permissions(const Job& job, const Stores& stores)
    : stores_(stores), umask_left_(stores.target().directories().bits_for_new()) {
  model_directory_ = stores.sources().resolve(job.model_directory.empty() ? job.source_directory : job.model_directory);
  for (const SourceFile& file : job.source.files) weights_ &= allowed_by(file.path);
  look_at_directories(job);
  look_at_folders(job);
  look_at_output(job);
  weights_ &= shown_;
  weights_.bits |= 0600;
  weights_.kept = umask_left_ | 0600;
}

/// Limits directories by the model's directory, and by those of inputs from elsewhere than their outputs' place in it.
void Permissions::look_at_directories(const Job& job) {
  const auto resolved = [&](const fs::path& path) { return stores_.sources().resolve(path.empty() ? "." : path); };
  std::set<fs::path> parents;
  for (const SourceFile& file : job.source.files) parents.insert(file.path.parent_path());
  std::set<std::pair<fs::path, fs::path>> moves;  // source and output directories of other files
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

/// Reads the modes of the folders of copied files.
void Permissions::look_at_folders(const Job& job) {
  for (const CopiedFile& file : job.copied_files) {
    fs::path source = file.source.parent_path();
    for (fs::path relative = file.path.parent_path(); !relative.empty(); relative = relative.parent_path()) {
      if (!folders_.emplace(relative, allowed_by(source)).second) break;
      source = source.parent_path();
    }
  }
}

/// A new output directory is as private as the input's. An existing one, or a folder in it, keeps its permissions, so
/// private files need restrictive permissions of their own.
void Permissions::look_at_output(const Job& job) {
  Directories& directories = stores_.target().directories();
  std::set<fs::path> folders{{}};
  for (const fs::path& file : output_files(job))
    for (fs::path folder = file.parent_path(); folders.insert(folder).second;) folder = folder.parent_path();
  for (const fs::path& folder : folders) {
    const fs::path path = folder.empty() ? job.output_directory : job.output_directory / folder;
    const auto access = directories.access(path);
    if (!access || !stores_.target().is_directory(path)) continue;
    AllowedMode allowed = directories_;
    if (const auto own = folders_.find(folder); own != folders_.end()) allowed &= own->second;
    std::uint32_t opened = access->bits & ~allowed.for_group(access->group);
    for (fs::path above = folder; !above.empty();) {
      above = above.parent_path();
      const auto outer = directories.access(above.empty() ? job.output_directory : job.output_directory / above);
      opened &= outer ? outer->bits : 0;
    }
    if ((opened & 0010) != 0) shown_.bits &= 0700;  // the directory's group may be others to a file of another group
    if ((opened & 0001) != 0) {
      shown_.bits &= 0770;
      shown_.groups = directories_.groups;
    }
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
  const fs::path source = file.source.empty() ? model_directory_ / file.path : file.source;
  AllowedMode allowed = weights_;
  if (file.source.empty() && !stores_.target().directories().access(source)) return allowed;
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

void set_permissions(Directories& directories, const fs::path& path, const AllowedMode& allowed) {
  const auto access = directories.access(path);
  if (!access) throw Error(ErrorKind::kIo, "cannot read its permissions").in(path);
  const std::uint32_t bits = allowed.for_group(access->group);
  if (access->bits != bits) directories.set_access_bits(path, bits);
}

bool make_directory(Directories& directories, const fs::path& path, const AllowedMode& allowed) {
  if (!directories.make(path, allowed.for_any_group())) return false;        // another run has just created it
  if (!allowed.groups.empty()) set_permissions(directories, path, allowed);  // its group is known only now
  return true;
}

}  // namespace reshard
