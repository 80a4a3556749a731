#pragma once

#include <atomic>
#include <string>

#include "reshard/engine/run.h"

namespace reshard::cli {

/// From now on SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 stop the program: at once, with the message and
/// exit code of kInterrupted, as long as there is nothing to clean up. Those that were ignored stay ignored, as under
/// nohup.
void mind_stop_signals();

/// The message of kInterrupted with the name of the signal that came to this process, if one did.
std::string with_signal_name(std::string message);

/// While one exists, the signals ask a run to stop instead, which then cleans up after itself. At most one at a time.
class StoppableRun {
 public:
  /// `progress` is borrowed.
  explicit StoppableRun(Progress& progress);
  StoppableRun(const StoppableRun&) = delete;
  StoppableRun& operator=(const StoppableRun&) = delete;
  ~StoppableRun();
};

/// Whether one of them came.
const std::atomic<bool>& signal_came();

/// From now on the signals end the program at once with this exit code: what it was asked to do is done, or has failed.
void note_done(int exit_code = 0);

}  // namespace reshard::cli
