#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reshard/base/note.h"
#include "reshard/engine/publish/journal.h"
#include "reshard/io/storage.h"
#include "reshard/plan/job/job.h"

namespace reshard {

/// A staging directory of the same output, which an earlier run left or a live run is using.
struct EarlierRun {
  enum class State {
    kDead,     // its process is gone
    kLives,    // its process has the lock
    kUnknown,  // it has no lock file, or the file system has no locks
    kForeign,  // not created by a run of this user, or contains other files
    kSwaps,    // its process died while it was publishing; see finish_swaps
  };
  std::filesystem::path root;
  State state = State::kUnknown;
  std::uint64_t size_bytes = 0;                // total size of all files
  JournalFound journal = JournalFound::kNone;  // a dead run's journal; kWhole: the same job can resume
  std::string why_foreign;                     // end of a sentence
};

/// Returns the staging directories of the job's output, sorted by path.
std::vector<EarlierRun> earlier_runs(Storage& storage, const Job& job);

/// Whether the run that created a staging directory is alive; false if unknown.
bool run_lives(Storage& storage, const std::filesystem::path& root);

/// Validates that a dead run's directory contains only files that runs of this job create.
/// \throws Error kBadInput naming the first other file.
void validate_no_foreign_files(Files& files, const Job& job, const std::filesystem::path& root);

/// Removes a staging directory, its lock last: if this process is killed meanwhile, `clean` removes the rest.
/// \param lock  of the directory; may be null.
void remove_staging(Storage& storage, const std::filesystem::path& root, std::unique_ptr<FileLock> lock) noexcept;

/// Completes swaps that dead runs left unfinished: replaces the old outputs by the new ones, which are complete. If
/// this process is killed meanwhile, the next run continues.
/// \throws Error kBadInput if this user or file system does not permit it; kIo.
Notes finish_swaps(Storage& storage, const Job& job);

/// Removes the staging directories of dead runs. Leaves those that may be in use and those not created by a run.
/// \returns the removed runs.
std::vector<EarlierRun> remove_dead_runs(Storage& storage, const Job& job);

/// Does the same. \returns a note, a whole sentence, on each staging directory.
Notes clean(Storage& storage, const Job& job);
/// Does the same for directories without a usable journal, from which no run can continue. Keeps those of runs that write
/// other files of the same checkpoint.
Notes clean_without_journal(Storage& storage, const Job& job);
/// Does the same for all directories after a run with `resume` has published, since no run of the job can use them any
/// more. Keeps those of runs that write other files of the same checkpoint.
Notes clean_after_resume(Storage& storage, const Job& job);

/// Mentions the directories of dead runs in an error's hint, since they may be its cause.
void hint_at_dead_runs(Error& error, Storage& storage, const Job& job);

/// The completed part of a job to resume.
struct Resumable {
  std::filesystem::path root;
  std::unique_ptr<FileLock> lock;  // of `root`
  std::vector<UnitReport> units;   // without duplicates
};

/// Returns the dead run with the most completed units, among those with the same sources and options; std::nullopt if
/// no run of the output has left a journal. Ignores torn journal files.
/// \throws Error if all journals belong to other runs: kBadInput for other sources, kUsage for other options, naming
/// the first difference; kUnsupported for a journal of another version.
std::optional<Resumable> find_resumable(Storage& storage, const Job& job, const JournalHeader& header);

}  // namespace reshard
