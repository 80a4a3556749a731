#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "reshard/engine/move/run.h"
#include "signals.h"

namespace reshard::cli {

/// How a run reports its progress to standard error (--progress).
enum class ProgressStyle : std::uint8_t {
  kAuto,   // a bar on a terminal, lines elsewhere; nothing with --quiet
  kLines,  // text, see ProgressPace
  kJson,   // one JSON object per line: as kLines, and one at the beginning and one at the end
  kNone,   // only what SIGUSR1 asks for
};

/// Returns kAuto for unknown text, which validate_values refuses.
ProgressStyle parse_progress(const std::string& text);

/// The state of a run at one time.
struct ProgressFacts {
  std::string_view phase;           // "writing", "flushing", …
  std::uint64_t done_bytes = 0;     // by this run
  std::uint64_t resumed_bytes = 0;  // by an earlier run
  std::uint64_t total_bytes = 0;
  double seconds = 0;  // of this run

  /// Bytes per second of this run; 0 at its beginning.
  double rate() const;
  /// Seconds until the remaining bytes are done at rate(); negative if unknown, as it is once all bytes are done but
  /// not flushed.
  double seconds_left() const;
  /// From 0 to 1, with the bytes of the earlier run.
  double share() const;
};

/// Formats the line for a terminal of `columns`: share, bytes, rate, time left, and a bar if there is room. Never
/// longer.
std::string progress_bar(const ProgressFacts& facts, int columns);
/// "reshard: writing: 25%, 1.00 GB of 4.00 GB, 500 MB/s, 0:06 left"
std::string progress_text(const ProgressFacts& facts);
/// docs/schemas/progress.schema.json, on one line.
std::string progress_json(const ProgressFacts& facts);

/// Decides when a line is due: 10 s after the previous one if another 5 % are done, at the latest after a minute, and
/// with each new phase of a run that had a line.
class ProgressPace {
 public:
  bool is_due(const ProgressFacts& facts);

 private:
  double seconds_ = 0;
  double share_ = 0;
  std::string_view phase_;
};

/// Reports the progress of a run. While it exists, the signals of mind_stop_signals ask the run to stop, and SIGUSR1
/// prints a line. At most one at a time.
class ProgressBar {
 public:
  /// `progress` is borrowed. `moving` names RunPhase::kMoving and is a literal.
  ProgressBar(Progress& progress, std::uint64_t total_bytes, const char* moving, ProgressStyle style, bool quiet);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  /// Erases the bar.
  ~ProgressBar();

 private:
  void report_until_done();
  ProgressFacts facts(double seconds) const;
  void print_line(const ProgressFacts& now) const;

  StoppableRun stoppable_;
  Progress& progress_;
  std::uint64_t total_bytes_;
  const char* moving_;
  ProgressStyle style_;
  bool has_bar_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  std::thread thread_;
};

/// Returns the peak memory of the process, in bytes.
std::uint64_t peak_memory_bytes();

}  // namespace reshard::cli
