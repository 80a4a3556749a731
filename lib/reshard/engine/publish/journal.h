#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <vector>

#include "reshard/engine/move/run.h"
#include "reshard/engine/units/unit_ledger.h"
#include "reshard/io/storage.h"
#include "reshard/plan/job/job.h"

namespace reshard {

// A killed run can be resumed from its journals: files ".journal-ATTEMPT-RANK-NUMBER" in the staging directory. Each is
// written once, after all data that it records is on stable storage, and sealed (sealed_text.h), so that a torn file is
// not a journal. Next to them are ".journal-ATTEMPT-RANK-fragments-NUMBER" (page_fragments.h).

inline constexpr std::string_view kJournalPrefix = ".journal-";
inline constexpr std::string_view kLockFile = ".lock";  // in the staging directory; locked while its run lives

/// Properties that a run must share with a journal's to resume from it.
struct JournalHeader {
  struct Source {
    std::string name;  // without its directory
    std::uint64_t size_bytes = 0;
    std::string state;  // Files::lasting_stamp

    static auto fields(auto& self) { return std::tie(self.name, self.size_bytes, self.state); }
    friend bool operator==(const Source&, const Source&) = default;
  };
  std::string fingerprint;                                   // fingerprint of the run
  std::uint32_t units = 0;                                   // number of units in the program
  std::vector<std::pair<std::string, std::string>> options;  // for the user: {"tp", "8"}
  std::vector<Source> sources;
  /// Options given by the user, to explain a different fingerprint. Not compared, since different options may have the
  /// same effect.
  std::map<std::string, std::string> given;

  static auto fields(auto& self) {
    return std::tie(self.fingerprint, self.units, self.options, self.sources, self.given);
  }
  friend bool operator==(const JournalHeader& a, const JournalHeader& b) {
    return a.fingerprint == b.fingerprint && a.units == b.units && a.options == b.options && a.sources == b.sources;
  }
};

/// Returns the header for a run of `job` that is divided into `units` units.
JournalHeader journal_header(const Job& job, const RunOptions& options, std::uint32_t units);

struct Journal {
  JournalHeader header;
  std::vector<std::string> fragment_files;  // files with fragments of these units (page_fragments.h)
  std::vector<UnitReport> units;

  static auto fields(auto& self) { return std::tie(self.header, self.fragment_files, self.units); }
};
std::string journal_text(const Journal& journal);
/// Returns std::nullopt if `text` is torn or not a journal.
/// \throws Error kUnsupported for a journal of another version; kBadInput for one with invalid contents.
std::optional<Journal> parse_journal(std::string_view text);

/// Reads a journal file.
/// \throws as parse_journal; kIo.
std::optional<Journal> read_journal(Files& files, const std::filesystem::path& path);
enum class JournalFound : std::uint8_t {
  kNone,        // no journal, or only torn, empty or non-matching ones
  kUnreadable,  // a journal of another version, or a damaged one
  kWhole,       // a journal with at least one unit
};
/// Returns the state of the best journal in a staging directory; only journals with `header` match, if it is given.
JournalFound find_journal(Files& files, const std::filesystem::path& root,
                          const JournalHeader* header = nullptr) noexcept;
inline bool has_journal(Files& files, const std::filesystem::path& root,
                        const JournalHeader* header = nullptr) noexcept {
  return find_journal(files, root, header) == JournalFound::kWhole;
}

/// Writes the journal of one rank while its units are completed. Thread-safe.
class JournalWriter {
 public:
  /// Flushes target files, given by their indices, to stable storage. \returns the fragment files so far.
  using Flush = std::function<std::vector<std::string>(const std::vector<std::uint32_t>& files)>;

  JournalWriter(Storage& storage, std::filesystem::path root, std::string prefix, JournalHeader header,
                std::chrono::milliseconds interval, Flush flush);
  JournalWriter(const JournalWriter&) = delete;
  JournalWriter& operator=(const JournalWriter&) = delete;
  ~JournalWriter();

  /// Adds a unit that is written, but not necessarily flushed. It is journalled when `interval` has passed since the
  /// last journal file; in long runs, when a fiftieth of the run's time has. Without an interval, at once.
  /// \throws Error if writing the journal failed.
  void add(UnitReport unit);
  /// Stops adding to the journal: a write failed, and the disk reports that only once. A failed flush has the same
  /// effect.
  void close() { closed_ = true; }
  /// Whether it was closed for lack of space.
  bool is_full() const { return full_; }
  /// Ends the journal's thread.
  /// \throws Error if writing the journal failed.
  void finish();
  /// Writes the units that are not journalled yet. Call after finish.
  /// \throws Error kIo or kNoSpace.
  void write_rest();

 private:
  void run();
  void write(const std::vector<UnitReport>& units);
  void write_file(const std::filesystem::path& path, const Journal& journal);

  Storage& storage_;
  std::filesystem::path root_;
  std::string prefix_;
  JournalHeader header_;
  std::chrono::milliseconds interval_;
  Flush flush_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<UnitReport> waiting_;
  bool ends_ = false;
  std::atomic<bool> closed_{false};
  std::atomic<bool> full_{false};
  std::exception_ptr failure_;
  std::uint64_t number_ = 0;  // number of files written
  /// Time of the last write if no thread is available.
  std::chrono::steady_clock::time_point written_at_ = std::chrono::steady_clock::now();
  std::thread thread_;  // started with the first unit
};

/// Returns the names of all journals in a staging directory.
std::vector<std::string> journal_files(Files& files, const std::filesystem::path& root);
/// The same, with their fragment files.
std::vector<std::string> journal_and_fragment_files(Files& files, const std::filesystem::path& root);
/// Returns the number of a new attempt: one more than the largest that has left a journal.
std::uint64_t next_attempt(Files& files, const std::filesystem::path& root);
/// Returns the prefix of a rank's file names.
std::string journal_prefix(std::uint64_t attempt, std::uint32_t rank);

}  // namespace reshard
