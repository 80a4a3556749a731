#pragma once

#include <atomic>
#include <string>

#include "reshard/engine/move/run.h"

namespace reshard::cli {

/// From now on SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 stop the program: at once, with the message and
/// exit code of kInterrupted, as long as there is nothing to clean up. Those that were ignored stay ignored, as under
/// nohup.
void mind_stop_signals();

/// The message of kInterrupted with the name of the signal that came to this process, if one did.
std::string with_signal_name(std::string message);

/// While one exists, the first signal asks a run to stop, which then cleans up after itself or, with `resume`, journals
/// what is complete. A later signal ends the program at once, unless outputs are being published; signals within a
/// second of the first are taken for the same one, since launchers and `timeout` send it to a process and to its group.
/// At most one at a time.
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
