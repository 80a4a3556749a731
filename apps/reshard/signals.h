#pragma once

#include <atomic>
#include <string>

#include "reshard/engine/move/run.h"

namespace reshard::cli {

/// Makes SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGUSR2 stop the program: immediately, with the message and exit code of
/// kInterrupted, while there is nothing to clean up. SIGUSR1 asks for a line of progress. Signals that were ignored stay
/// ignored, as under nohup.
void mind_stop_signals();

/// Whether SIGUSR1 was received since the last call, while there was a StoppableRun. Otherwise the signal itself prints
/// that the run has not begun, or has ended.
bool take_progress_request();

/// Adds the name of the signal that this process received, if any, to a message of kInterrupted.
std::string with_signal_name(std::string message);

/// While it exists, the first signal asks a run to stop; the run then cleans up or, with `resume`, journals its
/// completed units. A later signal ends the program immediately, unless outputs are being published. Signals within a
/// second of the first count as the same one, since launchers and `timeout` signal both a process and its group. At
/// most one at a time.
class StoppableRun {
 public:
  /// `progress` is borrowed.
  explicit StoppableRun(Progress& progress);
  StoppableRun(const StoppableRun&) = delete;
  StoppableRun& operator=(const StoppableRun&) = delete;
  ~StoppableRun();
};

/// Whether one of these signals was received.
const std::atomic<bool>& signal_came();

/// Makes the signals end the program immediately with this exit code: its work is done or has failed.
void note_done(int exit_code = 0);

}  // namespace reshard::cli
