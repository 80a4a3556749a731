#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "reshard/engine/move/page_fragments.h"
#include "reshard/engine/move/run.h"
#include "reshard/engine/publish/earlier_runs.h"
#include "reshard/engine/publish/journal.h"
#include "reshard/engine/publish/publish.h"
#include "reshard/engine/units/lots.h"
#include "reshard/engine/units/share.h"
#include "reshard/plan/job/job.h"

namespace reshard {

struct RunResult {
  std::uint64_t files = 0;            // written
  std::uint64_t read_bytes = 0;       // of tensors, compared ones counted; not what an earlier run had read
  std::vector<Divergence> divergent;  // replicas that differ where that is allowed, in the order of their texts
  std::vector<std::string> notes;     // what else the user should know: whole sentences
  /// Tensors of the target that are the mean of tensors that differ, in the program's order.
  std::vector<std::string> inexact;
  std::uint64_t written_bytes = 0;  // of all files
  std::uint64_t resumed_bytes = 0;  // of these, what an earlier run had written
  double seconds = 0;               // from prepare to the end of publish
  double hashing_seconds = 0;       // of threads that hashed tensors while they were moved; those of a manifest
  double rereading_seconds = 0;     // from the end of writing to the end of hashing files, which are read again
};

/// What the leader of a run tells the other processes.
struct PreparedRun {
  std::filesystem::path root;  // the staging directory
  std::vector<std::uint32_t>
      done_units;             // of the program, by an earlier run, ascending; their number is that of a journal
  bool has_lock = true;       // the staging directory's, so that a later run knows when this one is dead
  std::uint64_t attempt = 0;  // counts runs that went on in the staging directory

  static auto fields(auto& self) { return std::tie(self.root, self.has_lock, self.attempt, self.done_units); }
};

/// One run of a job in steps, which several processes can take together. The leader prepares and publishes; each share
/// is run by any process that has planned the same job and sees the same files. All of them need a JobRun of their own:
///
///   leader   prepare(), then tells the others what it made: prepared()
///   others   attach(prepared)
///   all      report = run(share), finish(report)
///   leader   merge() of all reports, once all of them have finished: publish(report)
///
/// Steps of one object are taken one after another; other objects may take theirs at the same time. Threads, memory and
/// ways of reading may differ from process to process. Every step throws Error of any kind, and then nothing is
/// published: the leader's destructor removes what was written. Whether processes planned the same job, and when all
/// have finished, is theirs to find out.
class JobRun {
 public:
  /// The job is borrowed.
  JobRun(const Job& job, RunOptions options);
  JobRun(const JobRun&) = delete;
  JobRun& operator=(const JobRun&) = delete;
  ~JobRun();

  /// Validates that the outputs may be written and fit, makes a staging directory and in it the target's files at their
  /// full size, and copies the model's other files. With RunOptions::resume, goes on with the directory that a run of
  /// the same job has left, if there is one with a journal.
  /// \param ranks  that will take shares.
  void prepare(std::uint32_t ranks = 1);
  /// What others need to take part.
  const PreparedRun& prepared() const { return prepared_; }
  /// Joins a run that another process has prepared.
  /// \throws Error kIo if this process does not see its directory.
  void attach(PreparedRun prepared);
  /// Removes what was written, as the destructor does; that one then removes what others have added meanwhile. No other
  /// step may follow.
  void abandon();
  /// Whether prepare found an earlier run to go on with.
  bool resumes() const { return !prepared_.done_units.empty(); }
  /// Leaves what was written for a later run with `resume`, if that can go on from it after an error of this kind.
  /// \returns whether it does.
  bool keep(ErrorKind why) noexcept;

  /// What is not done yet, dealt out to ranks.
  struct Dealt {
    Shares shares;
    SharedPages pages;  // where these meet
  };
  /// Deals it out. Needs prepare or attach; all processes of a run deal alike.
  /// \param with_lots  else there are none.
  Dealt deal(std::uint32_t count, bool with_lots) const;
  /// Moves the bytes of one share: the whole by default. Needs prepare or attach.
  /// \param lots  of the rank that the share is of: it hands over parts of shares meanwhile. Null for all shares of a
  ///              run, or for none.
  ShareReport run(const Share& share = {}, Lots* lots = nullptr);
  /// Brings what run wrote for this report to stable storage (if RunOptions::sync), but for files that this process
  /// writes to once more when it publishes.
  void finish(const ShareReport& report);
  /// Writes what depends on the tensors' CRCs, and small text files, flushes what is left and gives everything its
  /// final name. Needs prepare. Either all of the job's files stand under their names afterwards, or none.
  /// \param report  merged from all shares.
  /// \throws Error kInternal if the shares did not write the whole program.
  RunResult publish(ShareReport report);

 private:
  void create_files();
  void take_over(Resumable earlier);
  void note(std::string text);
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
  std::optional<Staging> staging_;   // the leader's
  std::unique_ptr<FileLock> lock_;   // of other processes
  std::uint64_t resumed_bytes_ = 0;  // bytes written
  std::uint64_t resumed_read_bytes_ = 0;
  std::vector<std::string> notes_;
  std::vector<UnitReport> earlier_;           // reports of the earlier run; of the leader
  std::set<std::uint32_t> ran_;               // shares run so far
  std::unique_ptr<PageFragments> fragments_;  // the last share's
  std::unique_ptr<JournalWriter> journal_;
  bool abandoned_ = false;
  bool kept_ = false;
  bool entries_flushed_ = false;  // whether names and sizes of all files in the staging directory are flushed
  std::vector<char> unflushed_;   // by target file: whether this process has written to it since the last flush
};

}  // namespace reshard
