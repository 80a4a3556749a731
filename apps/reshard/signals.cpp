#include "signals.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>
#include <utility>

#include "print.h"
#include "reshard/base/error.h"

namespace reshard::cli {
namespace {

struct StopSignal {
  int number;
  const char* name;
};
constexpr std::array kStopSignals = {StopSignal{SIGINT, "SIGINT"}, StopSignal{SIGTERM, "SIGTERM"},
                                     StopSignal{SIGHUP, "SIGHUP"}, StopSignal{SIGQUIT, "SIGQUIT"},
                                     StopSignal{SIGUSR2, "SIGUSR2"}};

// Read by the signal handler; lock-free.
std::atomic<Progress*> running{nullptr};
std::atomic<int> done{-1};  // the exit code, once known
std::atomic<bool> came{false};
std::atomic<const StopSignal*> first{nullptr};  // the first signal received
std::atomic<std::int64_t> first_ms{0};          // when the run was asked to stop; 0 before
std::atomic<bool> has_run{false};               // whether there was a StoppableRun
std::atomic<bool> progress_wanted{false};

constexpr std::int64_t kSameSignalMs = 1000;
constexpr std::string_view kEndedAtOnce =
    "reshard: ended at once by a second signal; what was written stays in the staging directory next to the output: "
    "--clean deletes it, --resume continues from its last journal\n";

/// Returns milliseconds of a monotonic clock. Async-signal-safe.
std::int64_t now_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000 + 1;
}

/// Async-signal-safe.
void write_line(std::string_view line) {
  if (is_muted()) return;
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

/// Async-signal-safe.
[[noreturn]] void end_interrupted(std::string_view line) {
  write_line(line);
  ::_exit(describe(ErrorKind::kInterrupted).exit_code);
}

std::string named(std::string message, const StopSignal* signal) {
  constexpr std::string_view kAny = "a signal";
  if (const auto at = message.find(kAny); signal != nullptr && at != std::string::npos)
    message.replace(at, kAny.size(), signal->name);
  return message;
}

/// Messages for each signal that ends the program immediately.
std::array<std::string, kStopSignals.size()>& stopped_lines() {
  static std::array<std::string, kStopSignals.size()> lines;
  return lines;
}

void stop(int number) {
  came = true;
  std::size_t row = 0;
  while (row + 1 < kStopSignals.size() && kStopSignals[row].number != number) ++row;
  const StopSignal* none = nullptr;
  first.compare_exchange_strong(none, &kStopSignals[row]);
  if (const int exit_code = done; exit_code >= 0) ::_exit(exit_code);
  if (Progress* progress = running.load()) {
    std::int64_t before_ms = 0;
    progress->stop = true;
    if (first_ms.compare_exchange_strong(before_ms, now_ms())) return;
    if (now_ms() - before_ms < kSameSignalMs || progress->phase == RunPhase::kPublishing) return;
    end_interrupted(kEndedAtOnce);
  }
  end_interrupted(stopped_lines()[row]);
}

void report_progress(int) {
  const int number = errno;
  if (running.load() != nullptr)
    progress_wanted = true;
  else
    write_line(has_run ? "reshard: finishing: all bytes are done\n" : "reshard: planning: no bytes are done yet\n");
  errno = number;
}

void set_handler(int number, void (*handler)(int)) {
  struct sigaction action {};
  if (::sigaction(number, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) return;
  action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigaction(number, &action, nullptr);
}

/// Before main: starting the program takes milliseconds, in which a request for progress must not end it.
[[gnu::constructor(101)]] void mind_early_request() {
  set_handler(SIGUSR1, report_progress);
}

}  // namespace

void mind_stop_signals() {
  for (std::size_t row = 0; row < kStopSignals.size(); ++row)  // in advance: a signal handler must not format
    stopped_lines()[row] = fmt::format("reshard: {}\n", named(kStoppedMessage, &kStopSignals[row]));
  for (const StopSignal& signal : kStopSignals) set_handler(signal.number, stop);
  set_handler(SIGUSR1, report_progress);
}

bool take_progress_request() {
  return progress_wanted.exchange(false);
}

std::string with_signal_name(std::string message) {
  return named(std::move(message), first);
}

StoppableRun::StoppableRun(Progress& progress) {
  running = &progress;
  has_run = true;
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
