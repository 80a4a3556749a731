#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "reshard/engine/move/run.h"
#include "signals.h"

namespace reshard::cli {

/// A progress line on the terminal; none if standard error is not a terminal. While it exists, the signals of
/// mind_stop_signals ask the run to stop. At most one at a time.
class ProgressBar {
 public:
  /// `progress` is borrowed. If `visible` is false, draws nothing but still handles the signals.
  ProgressBar(Progress& progress, std::uint64_t total_bytes, bool visible);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  /// Erases the line.
  ~ProgressBar();

 private:
  void draw_until_done();

  StoppableRun stoppable_;
  Progress& progress_;
  std::uint64_t total_bytes_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  std::thread thread_;
};

/// Formats the line for a terminal of `columns`: share, bytes, rate, time left, and a bar if there is room. Never
/// longer.
std::string progress_line(std::uint64_t done_bytes, std::uint64_t total_bytes, double seconds, bool flushing,
                          int columns);

/// Returns the peak memory of the process, in bytes.
std::uint64_t peak_memory_bytes();

}  // namespace reshard::cli
