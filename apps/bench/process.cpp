#include "process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>

namespace reshard::bench {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kSampleMilliseconds = 10;

volatile sig_atomic_t stop_signal = 0;

void on_signal(int number) {
  stop_signal = number;
}

void throw_if_failed(int error, const std::string& what) {
  if (error != 0) throw std::system_error(error, std::generic_category(), what);
}

/// Starts a program in its own process group, so that a signal reaches all its processes.
pid_t spawn(const std::vector<std::string>& argv, const fs::path& stderr_path) {
  std::vector<char*> pointers;
  pointers.reserve(argv.size() + 1);
  for (const std::string& argument : argv) pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&files);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDERR_FILENO, stderr_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pid_t pid = 0;
  const int error = ::posix_spawnp(&pid, pointers.front(), &files, &attributes, pointers.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  throw_if_failed(error, argv.front());
  return pid;
}

/// Records a process's memory. No-op if the process has ended.
void look(pid_t pid, Run& run) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  std::string word;
  std::uint64_t kibibytes = 0;
  while (status >> word) {
    if (word == "VmHWM:" && status >> kibibytes) run.peak_bytes = std::max(run.peak_bytes, kibibytes * 1024);
    if (word == "RssAnon:" && status >> kibibytes)
      run.peak_anonymous_bytes = std::max(run.peak_anonymous_bytes, kibibytes * 1024);
  }
}

/// Returns when the process has ended or a signal has arrived.
void watch(pid_t pid, Run& run) {
  const auto descriptor = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (descriptor < 0) throw std::system_error(errno, std::generic_category(), "pidfd_open");
  for (pollfd poll{descriptor, POLLIN, 0}; stop_signal == 0 && ::poll(&poll, 1, kSampleMilliseconds) <= 0;)
    look(pid, run);
  ::close(descriptor);
}

double seconds_in(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

void catch_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(number, &action, nullptr);
}

void throw_if_stopped() {
  if (stop_signal != 0) throw Stopped(stop_signal);
}

Run run_program(const std::vector<std::string>& argv, const fs::path& stderr_path, const std::vector<int>& good_exits) {
  throw_if_stopped();
  Run run;
  const Clock::time_point start = Clock::now();
  const pid_t pid = spawn(argv, stderr_path);
  watch(pid, run);
  run.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (stop_signal != 0) ::kill(-pid, SIGTERM);
  int status = 0;
  rusage usage{};
  while (::wait4(pid, &status, 0, &usage) < 0 && errno == EINTR) {
  }
  throw_if_stopped();
  run.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (std::find(good_exits.begin(), good_exits.end(), run.exit_code) == good_exits.end())
    throw std::runtime_error(
        fmt::format("exit code {}: {}\n{}", run.exit_code, command_line(argv), text_of(stderr_path)));
  run.user_seconds = seconds_in(usage.ru_utime);
  run.system_seconds = seconds_in(usage.ru_stime);
  run.device_read_bytes = static_cast<std::uint64_t>(usage.ru_inblock) * 512;
  return run;
}

std::string command_line(const std::vector<std::string>& argv) {
  std::string line;
  for (const std::string& argument : argv) {
    const bool plain = argument.find_first_of(" $&|;'\"\\*?()<>{}") == std::string::npos;
    line += (line.empty() ? "" : " ") + (plain ? argument : "'" + argument + "'");
  }
  return line;
}

}  // namespace reshard::bench
