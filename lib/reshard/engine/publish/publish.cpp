#include "reshard/engine/publish/publish.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <thread>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/paths.h"
#include "reshard/engine/publish/earlier_runs.h"
#include "reshard/engine/publish/journal.h"
#include "reshard/engine/publish/old_outputs.h"
#include "reshard/engine/publish/staging_mark.h"
#include "reshard/layouts/interrupted_swap.h"
#include "reshard/plan/proof/manifest.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

void rename_entry(Directories& directories, const fs::path& from, const fs::path& to) {
  directories.rename(from, to, RenameMode::kReplace);
}

void add_directories(Files& files, const fs::path& directory, std::set<fs::path>& found) {
  found.insert(directory);
  for (const DirectoryEntry& entry : files.list(directory))
    if (entry.kind == FileKind::kDirectory && !entry.is_link) add_directories(files, directory / entry.name, found);
}

/// Returns the random end of a staging directory's name.
std::string suffix_of(const fs::path& root) {
  constexpr std::size_t kSuffix = 6;
  const std::string name = root.filename().string();
  return name.substr(name.size() - kSuffix);
}

}  // namespace

void rename_new(Directories& directories, const fs::path& from, const fs::path& to) {
  RenameResult result = directories.rename(from, to, RenameMode::kNew);
  if (result == RenameResult::kUnsupported && (directories.access(to) || directories.is_link(to)))
    result = RenameResult::kExists;
  if (result == RenameResult::kExists)
    throw Error(ErrorKind::kBadInput, "appeared while the outputs were written, and is not replaced")
        .in(to)
        .hint("another run may have created it");
  if (result == RenameResult::kUnsupported) rename_entry(directories, from, to);
}

fs::path make_replaced(Directories& directories, const fs::path& root, const fs::path& relative) {
  fs::path folder = root;
  for (const fs::path& part : (kReplacedFolder / relative).parent_path()) directories.make(folder /= part, 0700);
  return folder / relative.filename();
}

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

Staging::Staging(const Job& job, const Stores& stores) : Staging(job, stores, Unmade{}) {
  claim_output();
  const fs::path home = output_existed_ ? final_ : final_.parent_path();
  make_directories(home);
  root_ = directories().make_private(home / (output_existed_ ? std::string(kStagingPrefix) : staging_prefix(final_)));
  mark_and_lock(root_);
  validate_alone(root_);
  for (const fs::path& relative : output_files(job)) make_staged_folders(relative.parent_path());
}

Staging::Staging(const Job& job, const Stores& stores, fs::path root, std::unique_ptr<FileLock> lock)
    : Staging(job, stores, Unmade{}) {
  claim_output();
  lock_ = std::move(lock);
  lock_->share();  // among the ranks of this run
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
      set_permissions(directories(), root_ / folder, permissions_.directory(folder));  // inputs may have become private
    }
  } catch (...) {
    root_.clear();  // so that nothing in it is removed
    throw;
  }
}

/// Marks the directory as this run's and, if the file system has locks, shows that this process is alive.
void Staging::mark_and_lock(const fs::path& root) {
  constexpr int kTries = 50;  // others take the lock briefly to check it
  try {
    for (int i = 0; i < kTries && !lock_; ++i) {
      if (i > 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      lock_ = directories().lock(root / kLockFile, true);
    }
    if (!lock_) throw Error(ErrorKind::kIo, "another run is resuming it").in(root).hint("wait until it finishes");
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported) throw;
    directories().remove_tree(root / kLockFile);
  }
  const std::string mark = staging_mark(job_);
  storage_.create(root / kMarkFile, mark.size())->write_at(0, std::as_bytes(std::span(mark)));
}

/// Determines whether the output directory exists, and claims it.
void Staging::claim_output() {
  final_ = storage_.resolve(job_.output_directory);
  if (job_.shares_directory) make_directories(final_);  // early, so that others find it
  output_existed_ = storage_.is_directory(final_);
  if (output_existed_) claim_ = directories().claim(final_, job_.shares_directory);
}

/// Validates that no other run writes to the same output, on any machine whose locks are visible. If two start at the
/// same time, both may fail.
void Staging::validate_alone(const fs::path& root) const {
  if (job_.shares_directory) return;
  for (const fs::path& other : stale_stagings(storage_, job_))
    if (other != root && run_lives(storage_, other))
      throw Error(ErrorKind::kIo, "another run is writing here").in(final_).hint("wait until it finishes");
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

/// Creates `directory` and its missing parents, and remembers which were created.
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
  std::vector<fs::path> entries, last;
  std::set<fs::path> tensor_files;
  for (const TargetFile& file : job_.target.files) tensor_files.insert(file.path);
  const auto is_last = [&](const fs::path& relative) {
    return std::any_of(job_.text_files.begin(), job_.text_files.end(),
                       [&](const TextFile& file) { return file.is_last && file.path == relative; });
  };
  const std::vector<fs::path> files = output_files(job_);
  const auto add = [&](bool with_tensors) {
    for (const fs::path& relative : files)
      if (!in_whole_folder(job_, relative) && tensor_files.contains(relative) == with_tensors)
        (is_last(relative) ? last : entries).push_back(relative);
  };
  add(true);
  entries.insert(entries.end(), job_.whole_folders.begin(), job_.whole_folders.end());
  add(false);
  entries.insert(entries.end(), last.begin(), last.end());
  return entries;
}

void Staging::take(Step step) {
  if (step.mode == RenameMode::kNew)
    rename_new(directories(), step.from, step.to);
  else if (directories().rename(step.from, step.to, step.mode) != RenameResult::kDone)
    throw Error(ErrorKind::kUnsupported, "cannot be swapped atomically").in(step.to);
  steps_.push_back(std::move(step));
}

/// Rolls back every step. If one cannot be rolled back, keeps the staging directory, which then contains the only copy.
void Staging::undo(const std::string& reason) {
  std::string kept;
  for (auto it = steps_.rbegin(); it != steps_.rend(); ++it) {
    try {
      if (it->mode == RenameMode::kNew)
        rename_new(directories(), it->to, it->from);  // another process may have created a file there
      else
        directories().rename(it->to, it->from, RenameMode::kExchange);
    } catch (const Error&) {
      kept += (kept.empty() ? "" : ", ") + it->to.filename().string();
    }
  }
  steps_.clear();
  if (kept.empty()) {
    directories().remove_tree(root_ / kSwapFile);
    directories().remove_tree(root_ / kReplacedFolder);
    directories().remove_tree(root_ / kOldFile);
    return;
  }
  const fs::path home = std::exchange(root_, {});  // so that nothing in it is removed
  throw Error(ErrorKind::kIo, reason + "; and the previous contents could not be restored: " + kept)
      .in(home)
      .hint("this directory contains the previous contents; move it back by hand, or run the command again");
}

/// Moves the staging directory itself.
void Staging::move_to(const fs::path& directory, std::string_view prefix) {
  const fs::path to = directory / (std::string(prefix) + suffix_of(root_));
  if (to == root_) return;
  rename_new(directories(), root_, to);
  root_ = to;
}

/// Flushes all of root(), and opens the directories in which outputs will be published, so that failures occur before
/// publication.
Staging::Opened Staging::flush_before_naming(std::set<fs::path> named, bool sync) {
  if (!sync) return nullptr;
  flush_tree(storage_, root_);
  for (const fs::path& made : made_directories_) named.insert(made.parent_path());
  Opened opened = directories().open(named, root_);
  opened->flush();
  return opened;
}

/// Moves all outputs into their own directory, so that one rename publishes them while lock and journals stay. Until
/// then a later run can resume.
void Staging::gather() {
  const fs::path whole = root_ / kWholeFolder;
  directories().make(whole, 0700);
  set_permissions(directories(), whole, permissions_.directory());
  std::set<fs::path> entries;
  for (const fs::path& relative : output_files(job_)) entries.insert(*relative.begin());
  for (const fs::path& entry : entries) rename_entry(directories(), root_ / entry, whole / entry);
}

/// From here on the contents of root_ no longer match the journals, even after a machine crash.
void Staging::set_aside_journals(bool sync) {
  const std::vector<std::string> journals = journal_and_fragment_files(storage_, root_);
  if (journals.empty()) return;
  const fs::path unused = root_ / kUnusedFolder;
  directories().make(unused, 0700);
  for (const std::string& name : journals) rename_entry(directories(), root_ / name, unused / name);
  if (sync) directories().open({root_}, root_)->flush();
}

/// The contents match the journals again, so a later run can resume.
void Staging::put_back_journals() {
  const fs::path unused = root_ / kUnusedFolder;
  if (root_.empty() || !storage_.is_directory(unused)) return;
  for (const DirectoryEntry& entry : storage_.list(unused))
    rename_entry(directories(), unused / entry.name, root_ / entry.name);
  directories().remove_empty(unused);
}

Staging::Opened Staging::name_directory(bool sync) {
  gather();
  Opened opened = flush_before_naming({final_.parent_path()}, sync);
  const fs::path whole = root_ / kWholeFolder;
  try {
    rename_new(directories(), whole, final_);
  } catch (const Error&) {
    if (!storage_.is_directory(final_) || !storage_.list(final_).empty()) throw;
    rename_entry(directories(), whole, final_);  // replaces an empty directory that was created meanwhile
  }
  return opened;
}

/// Whether the output directory can be exchanged: this process does not work in it, and no entry of it stays.
bool Staging::can_swap_directory() const {
  if (!job_.force || job_.shares_directory) return false;
  try {
    return directories().is_own(final_) && !lies_inside(storage_.resolve("."), final_) &&
           is_all_replaced(storage_, job_, final_, root_);
  } catch (const Error&) {
    return false;  // an unreadable directory is replaced entry by entry
  }
}

/// Gives the directories at and below `staged` the attributes of those that they replace.
/// \param folder  the folder in the output directory that `staged` replaces.
/// \returns whether they have all of them.
bool Staging::keep_attributes(const fs::path& folder, const fs::path& staged) {
  bool all = true;
  std::set<fs::path> kept;
  for (const fs::path& file : output_files(job_))
    for (fs::path above = file.parent_path(); lies_inside(above, folder) && kept.insert(above).second;
         above = above.parent_path())
      if (!directories().is_link(final_ / above) && storage_.is_directory(final_ / above))
        all = directories().copy_attributes(final_ / above, staged / above.lexically_relative(folder)) && all;
  return all;
}

/// Exchanges the output directory with a directory of the new outputs, if possible in one step.
/// \returns the directories to flush then; if published_ is false, nothing has changed.
Staging::Opened Staging::swap_directory(bool sync) {
  if (!can_swap_directory()) return nullptr;
  try {
    gather();
    if (!keep_attributes({}, root_ / kWholeFolder))
      throw Error(ErrorKind::kUnsupported, "has attributes that a new directory cannot get").in(final_);
    set_aside_journals(sync);
    move_to(final_.parent_path(), staging_prefix(final_));
    std::vector<fs::path> entries;
    for (const DirectoryEntry& entry : storage_.list(final_)) entries.emplace_back(entry.name);
    const OldOutputs old(storage_, final_, entries);
    old.write(storage_, root_, sync);
    Opened opened = flush_before_naming({final_.parent_path()}, sync);
    const fs::path whole = root_ / kWholeFolder;
    take({whole, final_, RenameMode::kExchange});
    // Other processes may have written to it.
    if (!is_all_replaced(storage_, job_, whole) || OldOutputs(storage_, whole, entries) != old)
      throw Error(ErrorKind::kUnsupported, "has a file that stays").in(final_);
    for (const fs::path& folder : job_.whole_folders) validate_only_ours(storage_, job_, folder, whole);
    published_ = true;
    return opened;
  } catch (const std::exception& thrown) {
    undo(thrown.what());
    take_apart(storage_, root_);
    const auto* error = dynamic_cast<const Error*>(&thrown);
    if (error == nullptr || (error->kind() != ErrorKind::kUnsupported && !error->code())) throw;
    return nullptr;  // a mount, a read-only parent, or a file system without exchange
  }
}

/// Records for later runs, in case of a kill, which entries are being published. All of them are on disk.
void Staging::begin_swap(const std::vector<fs::path>& entries, bool sync) {
  const std::string record = swap_record(entries);
  const auto sink = storage_.create(root_ / kSwapFile, record.size());
  sink->write_at(0, std::as_bytes(std::span(record)));
  sync ? sink->sync() : sink->finish();
  if (sync) directories().open({root_}, root_)->flush();
}

/// Replaces outputs one by one. After a kill, another process continues with finish_swaps.
Staging::Opened Staging::swap_entries(bool sync) {
  std::vector<fs::path> entries = entries_in_order();
  std::erase_if(entries,
                [&](const fs::path& relative) { return is_left_alone(stores_, job_, relative, final_ / relative); });
  for (const fs::path& relative : entries) make_directories((final_ / relative).parent_path());
  set_aside_journals(sync);
  move_to(final_, kStagingPrefix);
  std::vector<fs::path> old;
  std::set<fs::path> named;
  for (const fs::path& relative : entries) {
    named.insert((final_ / relative).parent_path());
    if (storage_.kind_of(final_ / relative) == FileKind::kNone) continue;
    if (is_left_alone(stores_, job_, relative, final_ / relative)) continue;  // it has come just now
    if (!job_.force)
      throw Error(ErrorKind::kBadInput, "appeared while the outputs were written, and is not replaced without `force`")
          .in(final_ / relative);
    old.push_back(relative);
    make_replaced(directories(), root_, relative);
  }
  for (const fs::path& folder : job_.whole_folders)
    if (!keep_attributes(folder, root_ / folder))
      notes_
          .output(fmt::format("{}: its owner, permissions or extended attributes could not all be kept",
                              (final_ / folder).string()))
          .in(final_ / folder);
  try {
    Opened opened = flush_before_naming(named, sync);
    const OldOutputs recorded(storage_, final_, old);
    recorded.write(storage_, root_, sync);
    begin_swap(entries, sync);
    for (auto it = old.rbegin(); it != old.rend(); ++it) {
      take({final_ / *it, root_ / kReplacedFolder / *it});
      // Other processes may have written to it.
      if (in_whole_folder(job_, *it)) validate_only_ours(storage_, job_, *it, root_ / kReplacedFolder);
      if (!recorded.cover(storage_, root_ / kReplacedFolder, *it))
        throw Error(ErrorKind::kBadInput, "another process wrote to it while it was being replaced").in(final_ / *it);
    }
    if (opened && !old.empty()) opened->flush();
    for (const fs::path& relative : entries) {
      try {
        take({root_ / relative, final_ / relative});
      } catch (const Error&) {
        if (!is_left_alone(stores_, job_, relative, final_ / relative)) throw;  // else it has come just now
      }
    }
    published_ = true;
    return opened;
  } catch (const std::exception& error) {
    undo(error.what());
    throw;
  }
}

Notes Staging::publish(bool sync) {
  Opened opened;
  try {
    opened = output_existed_ ? swap_directory(sync) : name_directory(sync);
    if (output_existed_ && !published_) opened = swap_entries(sync);
    published_ = true;
  } catch (...) {
    try {
      take_apart(storage_, root_);
      put_back_journals();
    } catch (const Error&) {
      // The next run tries again, or has nothing to resume.
    }
    throw;
  }
  try {
    if (opened) opened->flush();
  } catch (const Error& error) {
    notes_.output(
        fmt::format("the outputs are complete, but a crash of the machine may still lose them: {}", error.what()));
  }
  directories().remove_tree(root_ / kSwapFile);
  return std::move(notes_);
}

}  // namespace reshard
