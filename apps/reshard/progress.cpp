#include "progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

#include "print.h"
#include "reshard/base/strings.h"

namespace reshard::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kRedraw = std::chrono::milliseconds(100);
constexpr auto kQuietStart = std::chrono::milliseconds(300);  // shorter runs need no bar

int terminal_columns() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

bool is_capable_terminal() {
  const char* term = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

std::string clock_text(double seconds) {
  const auto whole = static_cast<std::uint64_t>(std::min(seconds, 359999.0) + 0.5);
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

}  // namespace

std::string progress_line(std::uint64_t done_bytes, std::uint64_t total_bytes, double seconds, bool flushing,
                          int columns) {
  const double share =
      total_bytes == 0 ? 1.0 : std::min(1.0, static_cast<double>(done_bytes) / static_cast<double>(total_bytes));
  const double rate = seconds > 0 ? static_cast<double>(done_bytes) / seconds : 0;
  std::string line = fmt::format("{:3.0f}%  {} of {}  {}/s", share * 100, format_bytes(done_bytes),
                                 format_bytes(total_bytes), format_bytes(static_cast<std::uint64_t>(rate)));
  if (flushing)
    line += "  flushing to disk";
  else if (rate > 0)
    line += "  " + clock_text(static_cast<double>(total_bytes - std::min(done_bytes, total_bytes)) / rate) + " left";
  constexpr int kMinBar = 10;
  constexpr int kMaxBar = 40;
  const int room = std::min(columns - 1 - static_cast<int>(line.size()) - 4, kMaxBar);
  if (room >= kMinBar) {
    const auto filled = static_cast<std::size_t>(share * room);
    line = fmt::format("[{}{}]  {}", std::string(filled, '='),
                       std::string(static_cast<std::size_t>(room) - filled, ' '), line);
  }
  if (static_cast<int>(line.size()) >= columns) line.resize(static_cast<std::size_t>(std::max(columns - 1, 0)));
  return line;
}

ProgressBar::ProgressBar(Progress& progress, std::uint64_t total_bytes, bool visible)
    : stoppable_(progress), progress_(progress), total_bytes_(total_bytes) {
  try {
    if (visible && is_capable_terminal()) thread_ = std::thread([this] { draw_until_done(); });
  } catch (const std::system_error&) {
    // Run without the bar.
  }
}

ProgressBar::~ProgressBar() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void ProgressBar::draw_until_done() {
  const auto start = Clock::now();
  bool drawn = false;
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kRedraw, [this] { return done_; })) {
    const auto elapsed = Clock::now() - start;
    if (elapsed < kQuietStart) continue;
    const double seconds = std::chrono::duration<double>(elapsed).count();
    const int columns = terminal_columns();
    const std::uint64_t left_bytes = total_bytes_ - std::min<std::uint64_t>(total_bytes_, progress_.resumed_bytes);
    const std::string line = progress_line(progress_.done_bytes + progress_.others_bytes, left_bytes, seconds,
                                           progress_.phase != RunPhase::kMoving, columns);
    print_error("\r" + line + "\x1b[K");
    drawn = true;
  }
  if (drawn) print_error("\r\x1b[K");
}

std::uint64_t peak_memory_bytes() {
  // The value from getrusage includes the memory of the parent process.
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (std::uint64_t kibibytes = 0; std::sscanf(line.c_str(), "VmHWM: %" SCNu64, &kibibytes) == 1)
      return kibibytes * 1024;
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace reshard::cli
