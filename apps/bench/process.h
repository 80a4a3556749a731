#pragma once

#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

namespace reshard::bench {

/// Cost of one run of a program.
struct Run {
  int exit_code = 0;
  double seconds = 0;  // wall time
  double user_seconds = 0;
  double system_seconds = 0;
  /// The most resident memory: anonymous memory plus pages of mapped files, which are page cache. Sampled, like the
  /// next, every few milliseconds, so what follows the last sample is missed. (wait4 reports at least the memory of
  /// this process.)
  std::uint64_t peak_bytes = 0;
  /// The most anonymous memory in a sample.
  std::uint64_t peak_anonymous_bytes = 0;
  std::uint64_t device_read_bytes = 0;
};

/// A signal stopped the benchmark.
class Stopped : public std::runtime_error {
 public:
  explicit Stopped(int number) : std::runtime_error("stopped by a signal"), signal_number(number) {}
  int signal_number;
};

/// Makes run_program and throw_if_stopped throw after SIGINT, SIGTERM or SIGHUP.
void catch_signals();
/// \throws Stopped.
void throw_if_stopped();

/// Runs a program to its end. Discards its output and writes its errors to `stderr_path`.
/// \throws std::runtime_error with its errors if its exit code is not in `good_exits`; Stopped, once it has ended.
Run run_program(const std::vector<std::string>& argv, const std::filesystem::path& stderr_path,
                const std::vector<int>& good_exits = {0});

/// Formats a command as typed in a shell.
std::string command_line(const std::vector<std::string>& argv);

}  // namespace reshard::bench
