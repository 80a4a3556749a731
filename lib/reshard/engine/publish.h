#pragma once

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "reshard/engine/output.h"
#include "reshard/engine/permissions.h"
#include "reshard/io/storage.h"
#include "reshard/plan/job.h"

namespace reshard {

/// What else than outputs may lie in a staging directory while they get their names.
inline constexpr const char* kAsideName = ".aside";      // what stands between two names that are swapped
inline constexpr const char* kWholeFolder = ".whole";    // a new output directory
inline constexpr const char* kUnusedFolder = ".unused";  // journals of what is no longer as they say, and the lock

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
  /// Makes the directory, and those above it that are missing, and locks it. Job and storage are borrowed.
  Staging(const Job& job, Storage& storage);
  /// Takes over the directory of a run that is dead, with its lock.
  Staging(const Job& job, Storage& storage, std::filesystem::path root, std::unique_ptr<FileLock> lock);
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

  /// Gives everything in root() its final name: the whole directory by one rename where the output directory is new;
  /// otherwise entry by entry, weights before indexes, whole folders last, and all of it undone if one step fails. What
  /// was replaced goes away with the staging. With `sync`, once this returns, all of it outlives a crash of the
  /// machine.
  /// \returns notes, whole sentences: that the disk did not confirm the names, though it could before. Mostly none.
  /// \throws Error kIo, kBadInput; then nothing has its final name.
  std::vector<std::string> publish(bool sync = true);

 private:
  struct Unmade {};
  Staging(const Job& job, Storage& storage, Unmade)
      : job_(job),
        storage_(storage),
        permissions_(job, storage) {}  // so that a constructor that fails is cleaned up after

  struct Step {
    std::filesystem::path staged;
    std::filesystem::path final;
    bool replaced = false;  // `staged` now holds what stood at `final`
  };

  Directories& directories() const { return storage_.directories(); }
  void claim_output();
  void mark_and_lock(const std::filesystem::path& root);
  void validate_alone(const std::filesystem::path& root) const;
  void make_directories(const std::filesystem::path& directory);
  void make_staged_folders(const std::filesystem::path& relative);
  std::vector<std::filesystem::path> entries_in_order() const;
  std::set<std::filesystem::path> named_directories() const;
  void gather();
  void set_aside_own_files(bool sync);
  void put_back_own_files();
  void give_names();
  void publish_entry(const std::filesystem::path& relative);
  void exchange(const std::filesystem::path& staged, const std::filesystem::path& final);
  void undo(const std::string& reason);

  const Job& job_;
  Storage& storage_;
  Permissions permissions_;
  std::filesystem::path root_;
  std::filesystem::path final_;            // the output directory, resolved
  std::unique_ptr<DirectoryClaim> claim_;  // on the output directory where that exists, for two runs not to mix in it
  std::unique_ptr<FileLock> lock_;         // on kLockFile; null where the file system has no locks
  bool output_existed_ = false;
  bool published_ = false;
  std::vector<std::filesystem::path> made_directories_;  // outermost first
  std::vector<Step> steps_;
};

}  // namespace reshard
