#pragma once

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/engine/publish/output.h"
#include "reshard/engine/publish/permissions.h"
#include "reshard/io/storage.h"
#include "reshard/plan/job/job.h"

namespace reshard {

/// What else than outputs may lie in a staging directory while they get their names.
inline constexpr const char* kWholeFolder = ".whole";        // a whole output directory
inline constexpr const char* kReplacedFolder = ".replaced";  // old outputs, which new ones replace one by one
inline constexpr const char* kUnusedFolder = ".unused";      // journals of what is no longer as they say

/// Renames to a name that nothing has; what appeared there meanwhile is not replaced where the file system can tell.
/// \throws Error kBadInput if something has; kIo.
void rename_new(Directories& directories, const std::filesystem::path& from, const std::filesystem::path& to);

/// Makes the folders above `relative` in kReplacedFolder of a staging directory.
/// \returns the path of `relative` there.
/// \throws Error kIo.
std::filesystem::path make_replaced(Directories& directories, const std::filesystem::path& root,
                                    const std::filesystem::path& relative);

/// Puts back what was gathered in kWholeFolder by a run that did not get as far as its name.
/// \throws Error kIo.
void take_apart(Storage& storage, const std::filesystem::path& root);

/// Has the disk confirm the names of all that lies below `root`.
/// \throws Error kIo.
void flush_tree(Storage& storage, const std::filesystem::path& root);

/// The place where a job's outputs grow before they get their names: a hidden directory on the same file system,
/// removed with all it holds unless published. Not thread-safe.
class Staging {
 public:
  /// Makes the directory, and those above it that are missing, and locks it. The job and the stores are borrowed.
  Staging(const Job& job, const Stores& stores);
  /// Takes over the directory of a run that is dead, with its lock.
  Staging(const Job& job, const Stores& stores, std::filesystem::path root, std::unique_ptr<FileLock> lock);
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  /// Removes what was not published, and the directories it made if they are empty.
  ~Staging();

  /// Whether others can find out that this process is gone.
  bool is_locked() const { return lock_ != nullptr; }
  /// Nobody but the owner may look into it.
  const std::filesystem::path& root() const { return root_; }
  /// Those that the files in it shall have.
  const Permissions& permissions() const { return permissions_; }

  /// Leaves it all where it is, for a later run.
  void keep();

  /// Gives everything in root() its final name, so that no reader finds old outputs among new ones. By one rename if the
  /// output directory is new, or contains nothing that is not replaced and can be swapped as a whole. Else one by one,
  /// with kSwapFile in root() meanwhile: all old outputs leave, the last first, then the new ones come: weights, whole
  /// folders, other files, and last those that say that all else is there. All of it is undone if one step fails. What
  /// was replaced goes away with the staging. With `sync`, once this returns, all of it outlives a crash of the machine.
  /// \returns notes, whole sentences: that the disk did not confirm the names, though it could before. Mostly none.
  /// \throws Error kIo, kBadInput; then nothing has its final name.
  std::vector<std::string> publish(bool sync = true);

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
};

}  // namespace reshard
