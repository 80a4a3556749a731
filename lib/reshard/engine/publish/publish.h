#pragma once

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/note.h"
#include "reshard/engine/publish/output.h"
#include "reshard/engine/publish/permissions.h"
#include "reshard/io/storage.h"
#include "reshard/plan/job/job.h"

namespace reshard {

/// Folders that a staging directory may contain while its outputs are published.
inline constexpr const char* kWholeFolder = ".whole";        // the whole output directory
inline constexpr const char* kReplacedFolder = ".replaced";  // old outputs, which new ones replace one by one
inline constexpr const char* kUnusedFolder = ".unused";      // journals that no longer match the staged outputs

/// Renames to a path that does not exist. If the file system supports it, does not replace one that appears meanwhile.
/// \throws Error kBadInput if `to` exists; kIo.
void rename_new(Directories& directories, const std::filesystem::path& from, const std::filesystem::path& to);

/// Creates the folders above `relative` in kReplacedFolder of a staging directory.
/// \returns the path of `relative` there.
/// \throws Error kIo.
std::filesystem::path make_replaced(Directories& directories, const std::filesystem::path& root,
                                    const std::filesystem::path& relative);

/// Moves outputs in kWholeFolder back to `root`, if a run gathered them there but did not publish them.
/// \throws Error kIo.
void take_apart(Storage& storage, const std::filesystem::path& root);

/// Flushes the names of all entries below `root` to stable storage.
/// \throws Error kIo.
void flush_tree(Storage& storage, const std::filesystem::path& root);

/// The staging directory of a job: a hidden directory on the file system of the outputs, in which they are written. It
/// is removed with its contents unless they are published. Not thread-safe.
class Staging {
 public:
  /// Creates the directory and its missing parents, and locks it. The job and the stores are borrowed.
  Staging(const Job& job, const Stores& stores);
  /// Takes over the directory of a dead run, with its lock.
  Staging(const Job& job, const Stores& stores, std::filesystem::path root, std::unique_ptr<FileLock> lock);
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  /// Removes unpublished outputs, and the directories that it created if they are empty.
  ~Staging();

  /// Whether the directory is locked, so that other processes can detect that this one has died.
  bool is_locked() const { return lock_ != nullptr; }
  /// Path of the directory, which only its owner can access.
  const std::filesystem::path& root() const { return root_; }
  /// Permissions for the files in the directory.
  const Permissions& permissions() const { return permissions_; }

  /// Keeps the directory for a later run.
  void keep();

  /// Moves all outputs to their final paths, so that no reader finds old outputs among new ones. Uses one rename if the
  /// output directory is new, or if it can be swapped as a whole because every entry in it is replaced. Otherwise moves
  /// entries one by one, with kSwapFile in root() meanwhile: removes all old outputs, the last first, then adds the new
  /// ones: weights, whole folders, other files, and finally the files that mark the checkpoint as complete. Rolls back
  /// all steps if one fails. Replaced outputs are deleted with the staging directory. Directories that replace others
  /// get their permissions and extended attributes. With `sync`, flushes everything.
  /// \returns notes, for example if the new names could not be flushed although flushing worked before.
  /// \throws Error kIo, kBadInput; then nothing is published.
  Notes publish(bool sync = true);

 private:
  struct Unmade {};
  Staging(const Job& job, const Stores& stores, Unmade)
      : job_(job),
        stores_(stores),
        storage_(stores.target()),
        permissions_(job, stores) {}  // so that a constructor that fails is cleaned up after

  struct Step {
    std::filesystem::path from;
    std::filesystem::path to;
    RenameMode mode = RenameMode::kNew;
  };
  using Opened = std::unique_ptr<OpenDirectories>;  // directories in which outputs are published; null without `sync`

  Directories& directories() const { return storage_.directories(); }
  void claim_output();
  void mark_and_lock(const std::filesystem::path& root);
  void validate_alone(const std::filesystem::path& root) const;
  void make_directories(const std::filesystem::path& directory);
  void make_staged_folders(const std::filesystem::path& relative);
  std::vector<std::filesystem::path> entries_in_order() const;
  bool can_swap_directory() const;
  bool keep_attributes(const std::filesystem::path& folder, const std::filesystem::path& staged);
  Opened flush_before_naming(std::set<std::filesystem::path> directories, bool sync);
  void gather();
  void set_aside_journals(bool sync);
  void put_back_journals();
  Opened name_directory(bool sync);
  Opened swap_directory(bool sync);
  Opened swap_entries(bool sync);
  void move_to(const std::filesystem::path& directory, std::string_view prefix);
  void begin_swap(const std::vector<std::filesystem::path>& entries, bool sync);
  void take(Step step);
  void undo(const std::string& reason);

  const Job& job_;
  Stores stores_;
  Storage& storage_;  // for outputs
  Permissions permissions_;
  std::filesystem::path root_;
  std::filesystem::path final_;            // the output directory, resolved
  std::unique_ptr<DirectoryClaim> claim_;  // on an existing output directory, so that two runs do not mix in it
  std::unique_ptr<FileLock> lock_;         // on kLockFile; null if the file system has no locks
  bool output_existed_ = false;
  bool published_ = false;
  std::vector<std::filesystem::path> made_directories_;  // outermost first
  std::vector<Step> steps_;                              // steps taken so far
  Notes notes_;
};

}  // namespace reshard
