#pragma once

#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

namespace reshard::bench {

/// What one run of a program took.
struct Run {
  int exit_code = 0;
  double seconds = 0;  // from its start to its end
  double user_seconds = 0;
  double system_seconds = 0;
  /// The most that was resident at a time: anonymous memory, and pages of mapped files, which are page cache all the
  /// same. Looked at every few milliseconds, as is the next: what comes after the last look is missed. (What wait4 says
  /// is no less than the memory of this process.)
  std::uint64_t peak_bytes = 0;
  /// The most anonymous memory of it at a look.
  std::uint64_t peak_anonymous_bytes = 0;
  std::uint64_t device_read_bytes = 0;
};

/// A signal asked the benchmark to stop.
class Stopped : public std::runtime_error {
 public:
  explicit Stopped(int number) : std::runtime_error("stopped by a signal"), signal_number(number) {}
  int signal_number;
};

/// From now on SIGINT, SIGTERM and SIGHUP make run_program and throw_if_stopped throw.
void catch_signals();
/// \throws Stopped.
void throw_if_stopped();

/// Runs a program to its end, its output thrown away and its errors kept in the file `stderr_path`.
/// \throws std::runtime_error with its errors if its exit code is none of `good_exits`; Stopped, once it is gone.
Run run_program(const std::vector<std::string>& argv, const std::filesystem::path& stderr_path,
                const std::vector<int>& good_exits = {0});

/// As one would type it.
std::string command_line(const std::vector<std::string>& argv);

}  // namespace reshard::bench
