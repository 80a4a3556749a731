#pragma once

#include "reshard/engine/run.h"

namespace reshard::cli {

/// From now on SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 stop the program: at once, with the message and
/// exit code of kInterrupted, as long as there is nothing to clean up. Those that were ignored stay ignored, as under
/// nohup.
void mind_stop_signals();

/// While one exists, the signals ask a run to stop instead, which then cleans up after itself. At most one at a time.
class StoppableRun {
 public:
  /// `progress` is borrowed.
  explicit StoppableRun(Progress& progress);
  StoppableRun(const StoppableRun&) = delete;
  StoppableRun& operator=(const StoppableRun&) = delete;
  ~StoppableRun();
};

/// From now on the signals end the program at once with exit code 0: what it was asked to do is done.
void note_done();

}  // namespace reshard::cli
