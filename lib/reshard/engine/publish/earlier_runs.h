#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reshard/engine/publish/journal.h"
#include "reshard/io/storage.h"
#include "reshard/plan/job/job.h"

namespace reshard {

/// A staging directory that a run of the same output has left, or still writes to.
struct EarlierRun {
  enum class State {
    kDead,     // its process is gone
    kLives,    // its process holds its lock
    kUnknown,  // it has no lock file, or the file system has no locks
    kForeign,  // no run of this user made it, or not all that it holds
    kSwaps,    // its process is gone, and was giving outputs their names: finish_swaps
  };
  std::filesystem::path root;
  State state = State::kUnknown;
  std::uint64_t size_bytes = 0;                // of all files in it
  JournalFound journal = JournalFound::kNone;  // of a dead run; from a whole one a run of the same job may go on
  std::string why_foreign;                     // the end of a sentence
};

/// All of them, by path.
std::vector<EarlierRun> earlier_runs(Storage& storage, const Job& job);

/// Whether the run that made a staging directory lives; false where that is not known.
bool run_lives(Storage& storage, const std::filesystem::path& root);

/// Nothing lies in the directory of a dead run but what runs of this job make.
/// \throws Error kBadInput naming what does.
void validate_no_foreign_files(Files& files, const Job& job, const std::filesystem::path& root);

/// Removes a staging directory, its lock last: if this process is killed meanwhile, `clean` removes the rest.
/// \param lock  on it; may be null.
void remove_staging(Storage& storage, const std::filesystem::path& root, std::unique_ptr<FileLock> lock) noexcept;

/// Finishes what dead runs were doing that gave their outputs their names one by one: their new outputs, which are
/// complete, replace the old ones. If this process is killed meanwhile, the next one goes on.
/// \returns notes, whole sentences.
/// \throws Error kBadInput if that cannot be done by this user, or on this file system; kIo.
std::vector<std::string> finish_swaps(Storage& storage, const Job& job);

/// Removes those whose process is gone. Those that live, or of which that is not known, are left alone, and so is what
/// no run has made.
/// \returns what was removed.
std::vector<EarlierRun> remove_dead_runs(Storage& storage, const Job& job);

/// Does so. \returns notes, whole sentences: what became of each.
std::vector<std::string> clean(Storage& storage, const Job& job);
/// The same, once a run with `resume` has published: no run of the job can use them any more. Those of runs that write
/// other files of the same checkpoint stay.
std::vector<std::string> clean_after_resume(Storage& storage, const Job& job);

/// Adds to an error's hint what dead runs have left: it may be in the way of a new one.
void hint_at_dead_runs(Error& error, Storage& storage, const Job& job);

/// What a dead run has done of the job that is to go on.
struct Resumable {
  std::filesystem::path root;
  std::unique_ptr<FileLock> lock;  // on it
  std::vector<UnitReport> units;   // each once
};

/// Of the dead runs that had the same sources and options, the one with the most units in its journal; nothing where no
/// run of the output has left a journal. Torn files of a journal are left out.
/// \throws Error where only others have: kBadInput for other sources, kUsage for other options, naming the first that
/// differs; kUnsupported for a journal of another version.
std::optional<Resumable> find_resumable(Storage& storage, const Job& job, const JournalHeader& header);

}  // namespace reshard
