#include "progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "print.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"

namespace reshard::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kRedraw = std::chrono::milliseconds(100);
constexpr std::string_view kFlushing = "flushing", kPublishing = "publishing";
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
  const auto whole = static_cast<std::uint64_t>(std::lround(std::min(seconds, 359999.0)));
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

std::string share_text(const ProgressFacts& facts) {
  return fmt::format("{:.0f}%", std::floor(facts.share() * 100));
}

/// "500 MB/s, 0:06 left"
std::string rate_text(const ProgressFacts& facts, std::string_view separator) {
  std::string text = format_bytes(static_cast<std::uint64_t>(facts.rate())) + "/s";
  if (facts.seconds_left() >= 0) text += fmt::format("{}{} left", separator, clock_text(facts.seconds_left()));
  return text;
}

}  // namespace

ProgressStyle parse_progress(const std::string& text) {
  for (const auto& [name, style] : {std::pair("auto", ProgressStyle::kAuto),
                                    {"lines", ProgressStyle::kLines},
                                    {"json", ProgressStyle::kJson},
                                    {"none", ProgressStyle::kNone}})
    if (text == name) return style;
  return ProgressStyle::kAuto;
}

double ProgressFacts::rate() const {
  return seconds > 0 ? static_cast<double>(done_bytes) / seconds : 0;
}

double ProgressFacts::seconds_left() const {
  const std::uint64_t present = std::min(total_bytes, resumed_bytes + done_bytes);
  const bool is_moving = phase != kFlushing && phase != kPublishing;
  return is_moving && rate() > 0 ? static_cast<double>(total_bytes - present) / rate() : -1;
}

double ProgressFacts::share() const {
  if (total_bytes == 0) return 1;
  return std::min(1.0, static_cast<double>(resumed_bytes + done_bytes) / static_cast<double>(total_bytes));
}

std::string progress_bar(const ProgressFacts& facts, int columns) {
  std::string line =
      fmt::format("{:>4}  {} of {}  {}", share_text(facts), format_bytes(facts.resumed_bytes + facts.done_bytes),
                  format_bytes(facts.total_bytes), rate_text(facts, "  "));
  if (facts.phase == kFlushing) line += "  flushing to disk";
  constexpr int kMinBar = 10;
  constexpr int kMaxBar = 40;
  const int room = std::min(columns - 1 - static_cast<int>(line.size()) - 4, kMaxBar);
  if (room >= kMinBar) {
    const auto filled = static_cast<std::size_t>(facts.share() * room);
    line = fmt::format("[{}{}]  {}", std::string(filled, '='),
                       std::string(static_cast<std::size_t>(room) - filled, ' '), line);
  }
  if (static_cast<int>(line.size()) >= columns) line.resize(static_cast<std::size_t>(std::max(columns - 1, 0)));
  return line;
}

std::string progress_text(const ProgressFacts& facts) {
  std::string text = fmt::format("reshard: {}: {}, {} of {}, {}", facts.phase, share_text(facts),
                                 format_bytes(facts.resumed_bytes + facts.done_bytes), format_bytes(facts.total_bytes),
                                 rate_text(facts, ", "));
  if (facts.resumed_bytes > 0) text += fmt::format(" ({} by an earlier run)", format_bytes(facts.resumed_bytes));
  return text;
}

std::string progress_json(const ProgressFacts& facts) {
  const double left = facts.seconds_left();
  return OrderedJson{{"event", "progress"},
                     {"phase", facts.phase},
                     {"done_bytes", facts.resumed_bytes + facts.done_bytes},
                     {"resumed_bytes", facts.resumed_bytes},
                     {"total_bytes", facts.total_bytes},
                     {"seconds", facts.seconds},
                     {"bytes_per_second", facts.rate()},
                     {"seconds_left", left < 0 ? OrderedJson(nullptr) : OrderedJson(left)}}
      .dump();
}

bool ProgressPace::is_due(const ProgressFacts& facts) {
  constexpr double kLeastSeconds = 10, kMostSeconds = 60, kLeastShare = 0.05;
  const double waited = facts.seconds - seconds_;
  const bool is_new_phase = seconds_ > 0 && facts.phase != phase_;
  if (!is_new_phase && waited < (facts.share() - share_ >= kLeastShare ? kLeastSeconds : kMostSeconds)) return false;
  seconds_ = facts.seconds;
  share_ = facts.share();
  phase_ = facts.phase;
  return true;
}

ProgressBar::ProgressBar(Progress& progress, std::uint64_t total_bytes, const char* moving, ProgressStyle style,
                         bool quiet)
    : stoppable_(progress),
      progress_(progress),
      total_bytes_(total_bytes),
      moving_(moving),
      style_(style != ProgressStyle::kAuto ? style
             : quiet                       ? ProgressStyle::kNone
                                           : ProgressStyle::kLines),
      has_bar_(style == ProgressStyle::kAuto && !quiet && is_capable_terminal()) {
  if (style_ == ProgressStyle::kJson) print_line(facts(0));
  try {
    thread_ = std::thread([this] { report_until_done(); });
  } catch (const std::system_error&) {
    // Run without reports.
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

ProgressFacts ProgressBar::facts(double seconds) const {
  std::string_view phase = moving_;
  if (progress_.phase == RunPhase::kFlushing) phase = kFlushing;
  if (progress_.phase == RunPhase::kPublishing) phase = kPublishing;
  return {phase, progress_.done_bytes + progress_.others_bytes, progress_.resumed_bytes, total_bytes_, seconds};
}

void ProgressBar::print_line(const ProgressFacts& now) const {
  const std::string line = style_ == ProgressStyle::kJson ? progress_json(now) : progress_text(now);
  print_error((has_bar_ ? "\r\x1b[K" : "") + line + "\n");
}

void ProgressBar::report_until_done() {
  const auto start = Clock::now();
  ProgressPace pace;
  bool drawn = false;
  std::unique_lock lock(mutex_);
  for (bool is_done = false; !is_done;) {
    is_done = wake_.wait_for(lock, kRedraw, [this] { return done_; });
    const auto elapsed = Clock::now() - start;
    const ProgressFacts now = facts(std::chrono::duration<double>(elapsed).count());
    const bool is_due = !has_bar_ && style_ != ProgressStyle::kNone && pace.is_due(now);
    if (take_progress_request() || (is_done ? style_ == ProgressStyle::kJson : is_due)) print_line(now);
    if (!has_bar_ || is_done || elapsed < kQuietStart) continue;
    print_error("\r" + progress_bar(now, terminal_columns()) + "\x1b[K");
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
