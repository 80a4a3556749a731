#include "signals.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <string>

#include "reshard/base/error.h"

namespace reshard::cli {
namespace {

constexpr std::array kStopSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

// Read by the signal handler; lock-free.
std::atomic<Progress*> running{nullptr};
std::atomic<bool> done{false};

std::string& stopped_line() {
  static std::string line = std::string("reshard: ") + kStoppedMessage + "\n";
  return line;
}

/// However often it is asked: a run ends at its next block, and cleans up after itself.
void stop(int) {
  if (done) ::_exit(0);
  if (Progress* progress = running.load()) {
    progress->stop = true;
    return;
  }
  const std::string& line = stopped_line();
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
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

void note_done() {
  done = true;
}

}  // namespace reshard::cli
