#include "reshard/engine/publish.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <thread>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/paths.h"
#include "reshard/engine/earlier_runs.h"
#include "reshard/engine/journal.h"
#include "reshard/engine/staging_mark.h"
#include "reshard/formats/manifest.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

void rename_entry(Directories& directories, const fs::path& from, const fs::path& to) {
  directories.rename(from, to, RenameMode::kReplace);
}

/// Renames to a name that nothing has; what appeared there meanwhile is not replaced where the file system can tell.
void rename_new(Directories& directories, const fs::path& from, const fs::path& to) {
  switch (directories.rename(from, to, RenameMode::kNew)) {
    case RenameResult::kDone: return;
    case RenameResult::kExists:
      throw Error(ErrorKind::kBadInput, "appeared while the outputs were written, and is not replaced")
          .in(to)
          .hint("another run may have made it");
    case RenameResult::kUnsupported: rename_entry(directories, from, to);
  }
}

void add_directories(Files& files, const fs::path& directory, std::set<fs::path>& found) {
  found.insert(directory);
  for (const DirectoryEntry& entry : files.list(directory))
    if (entry.kind == FileKind::kDirectory && !entry.is_link) add_directories(files, directory / entry.name, found);
}

}  // namespace

void take_apart(Storage& storage, const fs::path& root) {
  const fs::path whole = root / kWholeFolder;
  if (root.empty() || storage.directories().is_link(whole) || !storage.is_directory(whole)) return;
  for (const DirectoryEntry& entry : storage.list(whole))
    rename_entry(storage.directories(), whole / entry.name, root / entry.name);
  storage.directories().remove_empty(whole);
}

void flush_tree(Storage& storage, const fs::path& root) {
  std::set<fs::path> found;
  add_directories(storage, root, found);
  for (const fs::path& path : found) storage.directories().open({path}, root)->flush();
}

Staging::Staging(const Job& job, Storage& storage) : Staging(job, storage, Unmade{}) {
  claim_output();
  const fs::path home = output_existed_ ? final_ : final_.parent_path();
  make_directories(home);
  root_ = directories().make_private(home / (output_existed_ ? std::string(kStagingPrefix) : staging_prefix(final_)));
  mark_and_lock(root_);
  validate_alone(root_);
  for (const fs::path& relative : output_files(job)) make_staged_folders(relative.parent_path());
}

Staging::Staging(const Job& job, Storage& storage, fs::path root, std::unique_ptr<FileLock> lock)
    : Staging(job, storage, Unmade{}) {
  claim_output();
  lock_ = std::move(lock);
  lock_->share();  // with the ranks of this run
  validate_alone(root);
  for (const CopiedFile& file : job.copied_files) directories().remove_tree(root / file.path);
  for (const TextFile& file : job.text_files) directories().remove_tree(root / file.path);
  for (const char* name : {kManifestFile, kSha256SumsFile}) directories().remove_tree(root / name);
  root_ = std::move(root);
  try {
    std::set<fs::path> folders;
    for (const fs::path& relative : output_files(job))
      for (fs::path folder = relative.parent_path(); !folder.empty(); folder = folder.parent_path())
        folders.insert(folder);
    for (const fs::path& folder : folders) {
      make_staged_folders(folder);
      set_permissions(directories(), root_ / folder, permissions_.directory(folder));  // inputs may be private by now
    }
  } catch (...) {
    root_.clear();  // so that nothing in it is removed
    throw;
  }
}

/// Lets others know whose the directory is, and that this process lives, where the file system has locks.
void Staging::mark_and_lock(const fs::path& root) {
  constexpr int kTries = 50;  // others look at the lock for a moment
  try {
    for (int i = 0; i < kTries && !lock_; ++i) {
      if (i > 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      lock_ = directories().lock(root / kLockFile, true);
    }
    if (!lock_) throw Error(ErrorKind::kIo, "another run goes on with it").in(root).hint("wait until it is done");
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported) throw;
    directories().remove_tree(root / kLockFile);
  }
  const std::string mark = staging_mark(job_);
  storage_.create(root / kMarkFile, mark.size())->write_at(0, std::as_bytes(std::span(mark)));
}

/// Finds out whether the output directory exists, and keeps others from it.
void Staging::claim_output() {
  final_ = storage_.resolve(job_.output_directory);
  if (job_.shares_directory) make_directories(final_);  // at once, for others to find
  output_existed_ = storage_.is_directory(final_);
  if (output_existed_) claim_ = directories().claim(final_, job_.shares_directory);
}

/// No other run writes to the same output, on any machine whose locks are seen here. Of two that start at the same time,
/// both may find the other.
void Staging::validate_alone(const fs::path& root) const {
  if (job_.shares_directory) return;
  for (const fs::path& other : stale_stagings(storage_, job_))
    if (other != root && run_lives(storage_, other))
      throw Error(ErrorKind::kIo, "another run is writing here").in(final_).hint("wait until it is done");
}

void Staging::keep() {
  lock_.reset();
  root_.clear();
}

Staging::~Staging() {
  if (!root_.empty()) remove_staging(storage_, root_, std::move(lock_));
  claim_.reset();
  if (published_) return;
  for (auto it = made_directories_.rbegin(); it != made_directories_.rend(); ++it) directories().remove_empty(*it);
}

/// Makes `directory` and those above it that are missing, and remembers which.
void Staging::make_directories(const fs::path& directory) {
  std::vector<fs::path> missing;
  for (fs::path path = directory; !storage_.exists(path); path = path.parent_path()) missing.push_back(path);
  for (; !missing.empty(); missing.pop_back()) {
    const fs::path& path = missing.back();
    const bool inside = lies_inside(path, final_) && path != final_;
    if (make_directory(directories(), path,
                       permissions_.directory(inside ? path.lexically_relative(final_) : fs::path())))
      made_directories_.push_back(path);
  }
}

void Staging::make_staged_folders(const fs::path& relative) {
  if (relative.empty() || storage_.exists(root_ / relative)) return;
  make_staged_folders(relative.parent_path());
  make_directory(directories(), root_ / relative, permissions_.directory(relative));
}

std::vector<fs::path> Staging::entries_in_order() const {
  std::vector<fs::path> entries, last;  // the last ones say that all else is there
  const auto is_last = [&](const fs::path& relative) {
    return std::any_of(job_.text_files.begin(), job_.text_files.end(),
                       [&](const TextFile& file) { return file.is_last && file.path == relative; });
  };
  for (const fs::path& relative : output_files(job_))
    if (!in_whole_folder(job_, relative)) (is_last(relative) ? last : entries).push_back(relative);
  for (const fs::path& folder : job_.whole_folders) entries.push_back(folder);
  entries.insert(entries.end(), last.begin(), last.end());
  return entries;
}

/// Swaps two entries: in one step where the file system can, by way of a third name where it cannot.
void Staging::exchange(const fs::path& staged, const fs::path& final) {
  if (directories().rename(staged, final, RenameMode::kExchange) == RenameResult::kDone) return;
  const fs::path aside = staged.parent_path() / kAsideName;  // no output is hidden
  rename_entry(directories(), final, aside);
  try {
    rename_entry(directories(), staged, final);
  } catch (...) {
    rename_entry(directories(), aside, final);
    throw;
  }
  try {
    rename_entry(directories(), aside, staged);
  } catch (...) {
    rename_entry(directories(), final, staged);
    rename_entry(directories(), aside, final);
    throw;
  }
}

void Staging::publish_entry(const fs::path& relative) {
  Step step{root_ / relative, final_ / relative, false};
  if (storage_.kind_of(step.final) == FileKind::kNone) {
    try {
      rename_new(directories(), step.staged, step.final);
    } catch (const Error&) {
      if (is_left_alone(storage_, job_, relative, step.final)) return;  // it has come just now
      throw;
    }
    steps_.push_back(step);
    return;
  }
  if (is_left_alone(storage_, job_, relative, step.final)) return;
  if (!job_.force)
    throw Error(ErrorKind::kBadInput, "appeared while the outputs were written, and is not replaced without `force`")
        .in(step.final);
  step.replaced = true;
  exchange(step.staged, step.final);
  steps_.push_back(step);
  if (in_whole_folder(job_, relative)) validate_only_ours(storage_, job_, relative, root_);  // others may have written
}

/// Takes every step back. What cannot be taken back keeps the staging directory, which then holds the only copy.
void Staging::undo(const std::string& reason) {
  std::string kept;
  for (auto it = steps_.rbegin(); it != steps_.rend(); ++it) {
    try {
      if (it->replaced)
        exchange(it->final, it->staged);
      else
        rename_entry(directories(), it->final, it->staged);
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

/// Moves all outputs into a directory of their own, so that one rename gives them their names while lock and journals
/// stay: until then a later run can go on.
void Staging::gather() {
  const fs::path whole = root_ / kWholeFolder;
  directories().make(whole, 0700);
  set_permissions(directories(), whole, permissions_.directory());
  std::set<fs::path> entries;
  for (const fs::path& relative : output_files(job_)) entries.insert(*relative.begin());
  for (const fs::path& entry : entries) rename_entry(directories(), root_ / entry, whole / entry);
}

/// From here on what lies in root_ is not what a journal says, after a crash of the machine, too. Where outputs are
/// replaced it will hold the only copy of these, so that the lock goes as well: nobody takes it for a dead run's.
void Staging::set_aside_own_files(bool sync) {
  std::vector<std::string> own_files = journal_and_fragment_files(storage_, root_);
  const std::vector<fs::path> entries = entries_in_order();
  if (lock_ && std::any_of(entries.begin(), entries.end(),
                           [&](const fs::path& entry) { return storage_.kind_of(final_ / entry) != FileKind::kNone; }))
    own_files.emplace_back(kLockFile);
  if (own_files.empty()) return;
  const fs::path unused = root_ / kUnusedFolder;
  directories().make(unused, 0700);
  for (const std::string& name : own_files) rename_entry(directories(), root_ / name, unused / name);
  if (sync) directories().open({root_}, root_)->flush();
}

/// All is as it was: a later run can go on.
void Staging::put_back_own_files() {
  const fs::path unused = root_ / kUnusedFolder;
  if (root_.empty() || !storage_.is_directory(unused)) return;
  for (const DirectoryEntry& entry : storage_.list(unused))
    rename_entry(directories(), unused / entry.name, root_ / entry.name);
  directories().remove_empty(unused);
}

void Staging::give_names() {
  if (!output_existed_) {
    const fs::path whole = root_ / kWholeFolder;
    try {
      rename_new(directories(), whole, final_);
    } catch (const Error&) {
      if (!storage_.is_directory(final_) || !storage_.list(final_).empty()) throw;
      rename_entry(directories(), whole, final_);  // over one that was made meanwhile, with nothing in it
    }
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
  std::unique_ptr<OpenDirectories> named;
  try {
    if (output_existed_)
      for (const fs::path& relative : entries_in_order()) make_directories((final_ / relative).parent_path());
    else
      gather();
    if (sync) {
      flush_tree(storage_, root_);
      named = directories().open(named_directories(), root_);
      named->flush();  // what fails now fails before anything has its name
    }
    if (output_existed_) set_aside_own_files(sync);
    give_names();
  } catch (...) {
    try {
      take_apart(storage_, root_);
      put_back_own_files();
    } catch (const Error&) {
      // The next run tries once more, or has none to go on with.
    }
    throw;
  }
  if (!named) return {};
  try {
    named->flush();
  } catch (const Error& error) {
    return {fmt::format("the outputs are complete, but a crash of the machine may still lose them: {}", error.what())};
  }
  return {};
}

}  // namespace reshard
