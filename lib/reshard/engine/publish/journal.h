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
#include "reshard/io/storage.h"
#include "reshard/plan/job/job.h"

namespace reshard {

// What a run that is killed leaves for a later one: files ".journal-ATTEMPT-RANK-NUMBER" in the staging directory. Each
// is written once, after all that it tells of is on stable storage, and is sealed (sealed_text.h), so that one that was
// torn is no journal. Beside them lie ".journal-ATTEMPT-RANK-fragments-NUMBER" (page_fragments.h).

inline constexpr std::string_view kJournalPrefix = ".journal-";
inline constexpr std::string_view kLockFile = ".lock";  // of the staging directory, locked while its run lives

/// What a later run has to have in common with the one that wrote a journal.
struct JournalHeader {
  struct Source {
    std::string name;  // without its directory
    std::uint64_t size_bytes = 0;
    std::string state;  // Files::lasting_stamp

    static auto fields(auto& self) { return std::tie(self.name, self.size_bytes, self.state); }
    friend bool operator==(const Source&, const Source&) = default;
  };
  std::string fingerprint;                                   // of the run
  std::uint32_t units = 0;                                   // that the program is cut into
  std::vector<std::pair<std::string, std::string>> options;  // for the user: {"tp", "8"}
  std::vector<Source> sources;
  /// What the fingerprint stands for, likewise: it says what the user did otherwise where fingerprints differ. Equal ones
  /// may come from different options, so that this is not compared.
  std::map<std::string, std::string> given;

  static auto fields(auto& self) {
    return std::tie(self.fingerprint, self.units, self.options, self.sources, self.given);
  }
  friend bool operator==(const JournalHeader& a, const JournalHeader& b) {
    return a.fingerprint == b.fingerprint && a.units == b.units && a.options == b.options && a.sources == b.sources;
  }
};

/// Of a run of `job` that cuts it into so many units.
JournalHeader journal_header(const Job& job, const RunOptions& options, std::uint32_t units);

struct Journal {
  JournalHeader header;
  std::vector<std::string> fragment_files;  // that hold some of what these units wrote (page_fragments.h)
  std::vector<UnitReport> units;

  static auto fields(auto& self) { return std::tie(self.header, self.fragment_files, self.units); }
};
std::string journal_text(const Journal& journal);
/// \returns nothing for what is torn, or no journal.
/// \throws Error kUnsupported for a journal of another version.
std::optional<Journal> parse_journal(std::string_view text);

/// The same of a file.
/// \throws as parse_journal; kIo.
std::optional<Journal> read_journal(Files& files, const std::filesystem::path& path);
enum class JournalFound : std::uint8_t {
  kNone,        // or torn ones alone
  kUnreadable,  // of another version, or damaged
  kWhole,       // one that has a unit
};
/// The best that lies in a staging directory: of a run with this header, if one is given.
JournalFound find_journal(Files& files, const std::filesystem::path& root,
                          const JournalHeader* header = nullptr) noexcept;
inline bool has_journal(Files& files, const std::filesystem::path& root,
                        const JournalHeader* header = nullptr) noexcept {
  return find_journal(files, root, header) == JournalFound::kWhole;
}

/// Writes the journal of one rank, while units are done. Thread-safe.
class JournalWriter {
 public:
  /// Brings files of the target, given by their indices, to stable storage. \returns the files of fragments so far.
  using Flush = std::function<std::vector<std::string>(const std::vector<std::uint32_t>& files)>;

  JournalWriter(Storage& storage, std::filesystem::path root, std::string prefix, JournalHeader header,
                std::chrono::milliseconds interval, Flush flush);
  JournalWriter(const JournalWriter&) = delete;
  JournalWriter& operator=(const JournalWriter&) = delete;
  ~JournalWriter();

  /// A unit is written, but maybe not on the disk. It gets into the journal when `interval` has gone since the last
  /// time; later than that, when a fiftieth of the time of the whole run has. Without an interval it does so at once.
  /// \throws Error what went wrong with the journal.
  void add(UnitReport unit);
  /// Nothing gets into the journal any more: something could not be written, and the disk tells that only once. A flush
  /// that fails does so, too.
  void close() { closed_ = true; }
  /// Whether it was closed since there is no space for it.
  bool is_full() const { return full_; }
  /// Ends the thread that does so.
  /// \throws Error what went wrong in it.
  void finish();
  /// Writes what is not in the journal yet. After finish.
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
  std::uint64_t number_ = 0;  // of files written
  std::thread thread_;        // begun with the first unit
};

/// The names of all journals in a staging directory.
std::vector<std::string> journal_files(Files& files, const std::filesystem::path& root);
/// The same with what belongs to them: fragments.
std::vector<std::string> journal_and_fragment_files(Files& files, const std::filesystem::path& root);
/// The number of a new attempt: one more than those that have left a journal there.
std::uint64_t next_attempt(Files& files, const std::filesystem::path& root);
/// What the names of a rank's files begin with.
std::string journal_prefix(std::uint64_t attempt, std::uint32_t rank);

}  // namespace reshard
