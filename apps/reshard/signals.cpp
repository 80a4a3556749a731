#include "signals.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <string>

#include "print.h"
#include "reshard/base/error.h"

namespace reshard::cli {
namespace {

constexpr std::array kStopSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

// Read by the signal handler; lock-free.
std::atomic<Progress*> running{nullptr};
std::atomic<int> done{-1};  // the exit code, once it is known
std::atomic<bool> came{false};

std::string& stopped_line() {
  static std::string line = std::string("reshard: ") + kStoppedMessage + "\n";
  return line;
}

/// However often it is asked: a run ends at its next block, and cleans up after itself.
void stop(int) {
  came = true;
  if (const int exit_code = done; exit_code >= 0) ::_exit(exit_code);
  if (Progress* progress = running.load()) {
    progress->stop = true;
    return;
  }
  const std::string& line = stopped_line();
  if (!is_muted()) {
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  }
  ::_exit(describe(ErrorKind::kInterrupted).exit_code);
}

}  // namespace

void mind_stop_signals() {
  stopped_line();  // made now, as a signal handler must not
  for (const int number : kStopSignals) {
    struct sigaction action {};
    if (::sigaction(number, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = stop;
    action.sa_flags = SA_RESTART;
    ::sigaction(number, &action, nullptr);
  }
}

StoppableRun::StoppableRun(Progress& progress) {
  running = &progress;
}

StoppableRun::~StoppableRun() {
  running = nullptr;
}

const std::atomic<bool>& signal_came() {
  return came;
}

void note_done(int exit_code) {
  done = exit_code;
}

}  // namespace reshard::cli
