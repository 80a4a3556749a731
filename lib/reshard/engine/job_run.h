#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "reshard/engine/execute.h"
#include "reshard/engine/move/page_fragments.h"
#include "reshard/engine/move/run.h"
#include "reshard/engine/move/shared_pages.h"
#include "reshard/engine/publish/earlier_runs.h"
#include "reshard/engine/publish/journal.h"
#include "reshard/engine/publish/publish.h"
#include "reshard/engine/units/lots.h"
#include "reshard/engine/units/share.h"
#include "reshard/plan/job/job.h"

namespace reshard {

/// A prepared run, as the leader describes it to the other processes.
struct PreparedRun {
  std::filesystem::path root;  // the staging directory
  /// Units that an earlier run has completed, ascending; numbered as in its journals.
  std::vector<std::uint32_t> done_units;
  bool has_lock = true;       // whether the staging directory is locked, which shows that its run is alive
  std::uint64_t attempt = 0;  // number of this attempt in the staging directory, from 0

  static auto fields(auto& self) { return std::tie(self.root, self.has_lock, self.attempt, self.done_units); }
};

/// Runs a job in steps, in one or several processes. The leader prepares and publishes. Any process that has planned
/// the same job and sees the same files can run a share. Each process needs its own JobRun:
///
///   leader   prepare(), then sends prepared() to the others
///   others   attach(prepared)
///   all      report = run(share), finish(report)
///   leader   merge() of all reports, once all processes have finished: publish(report)
///
/// The steps of one object run one after another; different objects may run theirs concurrently. Threads, memory and
/// I/O methods may differ between processes. Every step may throw an Error of any kind. Nothing is published then, and
/// the leader's destructor removes the staging directory. Callers ensure that all processes planned the same job, and
/// that all of them have finished before publish.
class JobRun {
 public:
  /// The job is borrowed.
  JobRun(const Job& job, RunOptions options);
  JobRun(const JobRun&) = delete;
  JobRun& operator=(const JobRun&) = delete;
  ~JobRun();

  /// Validates that the outputs may be written and fit, creates the target's files at their full size in a new staging
  /// directory, and copies the model's other files. With RunOptions::resume, continues in the staging directory of an
  /// earlier run of the same job, if it has a journal.
  /// \param ranks  number of ranks that will run shares.
  void prepare(std::uint32_t ranks = 1);
  /// Returns the state that attach needs in other processes.
  const PreparedRun& prepared() const { return prepared_; }
  /// Joins a run that another process has prepared.
  /// \throws Error kIo if the staging directory is not visible here, or is locked by another run.
  void attach(PreparedRun prepared);
  /// Removes the staging directory. The destructor removes it again, with anything that other processes have added
  /// since. No other step may follow.
  void abandon();
  /// Whether prepare found an earlier run to continue.
  bool resumes() const { return !prepared_.done_units.empty(); }
  /// Keeps the staging directory for a later run with `resume`, if that run can continue after an error of this kind.
  /// \returns whether the directory is kept.
  bool keep(ErrorKind why) noexcept;

  /// Remaining units, distributed over ranks.
  struct Dealt {
    Shares shares;
    SharedPages pages;  // pages to which several of these shares write
  };
  /// Distributes the remaining units. Needs prepare or attach. All processes of a run compute the same distribution.
  /// \param with_lots  whether to divide part of each share into lots.
  Dealt deal(std::uint32_t count, bool with_lots) const;
  /// Moves the bytes of one share, by default the whole program. Needs prepare or attach.
  /// \param lots  exchanges lots with other ranks during the run; may be null. Must be null for all shares of a run or
  ///              for none.
  ShareReport run(const Share& share = {}, Lots* lots = nullptr);
  /// Flushes the files that run wrote for this report to stable storage (if RunOptions::sync), except files that this
  /// process writes to again in publish.
  void finish(const ShareReport& report);
  /// Writes data that depends on the tensors' CRCs, and small text files, flushes the remaining files and moves all of
  /// them to their final paths. Needs prepare. Publishes either all of the job's files or none.
  /// \param report  merged from all shares.
  /// \throws Error kInternal if the shares did not write the whole program.
  RunResult publish(ShareReport report);

 private:
  void create_files();
  void take_over(Resumable earlier);
  void note(const Notes& notes);
  bool journals() const { return options_.journal && options_.sync && prepared_.has_lock; }
  std::uint32_t unit_count() const;
  void begin_journal(std::uint32_t share);
  void end_journal(bool is_interrupted);
  void flush_entries();
  void write_manifest(const ShareReport& report, RunResult& result);
  void flush(const std::vector<std::uint32_t>& files, const std::vector<std::uint32_t>* crcs);

  const Job& job_;
  RunOptions options_;
  std::chrono::steady_clock::time_point start_;
  PreparedRun prepared_;
  std::optional<Staging> staging_;   // leader only
  std::unique_ptr<FileLock> lock_;   // processes other than the leader
  std::uint64_t resumed_bytes_ = 0;  // bytes written
  std::uint64_t resumed_read_bytes_ = 0;
  Notes notes_;
  std::vector<UnitReport> earlier_;           // reports of the earlier run; leader only
  std::set<std::uint32_t> ran_;               // shares run so far
  std::unique_ptr<PageFragments> fragments_;  // the last share's
  std::unique_ptr<JournalWriter> journal_;
  bool abandoned_ = false;
  bool kept_ = false;
  bool entries_flushed_ = false;  // whether names and sizes of all files in the staging directory are flushed
  std::vector<char> unflushed_;   // by target file: whether this process has written to it since the last flush
};

}  // namespace reshard
