#include "transcript.h"

#include <fcntl.h>
#include <pty.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <cstdlib>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "support/catch.h"
#include "support/files.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// The text with a constant for the free space, which is about the machine.
std::string without_machine(const std::string& text) {
  static const std::regex kFree(R"(;\s+[0-9.]+\s+[kMGTP]?B\s+free\s+on\s+\S+)");
  return std::regex_replace(text, kFree, "; 100 GB free on /");
}

/// The text with constants for all that differs from run to run.
std::string normalized(const std::string& output) {
  static const std::pair<std::regex, const char*> kRules[] = {
      {std::regex(R"([0-9.]+ s, [0-9.]+ GB/s, peak memory [0-9.]+ [KMG]iB)"), "0.01 s, 0.10 GB/s, peak memory 10 MiB"},
      {std::regex(R"([0-9.]+ s\s+of CPU to hash tensors, [0-9.]+ s\s+to read files back)"),
       "0.01 s of CPU to hash tensors, 0.01 s to read files back"},
      {std::regex(R"re("(free|seconds|bytes_per_second|peak_memory_bytes)": [-+.e0-9]+)re"), "\"$1\": 0"}};
  std::string text = without_machine(output);
  for (const auto& [what, constant] : kRules) text = std::regex_replace(text, what, constant);
  return text;
}

/// A terminal of 80 columns that passes on every byte as it is.
class Terminal {
 public:
  Terminal() {
    const winsize size{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
    if (::openpty(&master_, &slave_, nullptr, nullptr, &size) != 0) throw std::runtime_error("there is no terminal");
    termios settings{};
    ::tcgetattr(slave_, &settings);
    ::cfmakeraw(&settings);
    ::tcsetattr(slave_, TCSANOW, &settings);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  ~Terminal() {
    ::close(master_);
    close_slave();
  }

  int slave() const { return slave_; }
  void close_slave() {
    if (slave_ >= 0) ::close(slave_);
    slave_ = -1;
  }
  /// All that is written until nobody has the slave open any more.
  std::string read_all() const {
    std::string text;
    char buffer[4096];
    for (ssize_t count = 0; (count = ::read(master_, buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<std::size_t>(count));
    return text;
  }

 private:
  int master_ = -1;
  int slave_ = -1;
};

/// What the command prints in `directory`.
std::string output_of(const std::string& command, const fs::path& directory) {
  const TempDir captured;
  const std::string errors = (captured / "err").string();
  const std::string program_folder = fs::path(RESHARD_PROGRAM).parent_path().string();
  const std::string script = "cd '" + directory.string() + "' && PATH='" + program_folder +
                             "':$PATH NO_COLOR=1 && export PATH NO_COLOR && " + command;
  Terminal terminal;
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("cannot fork");
  if (child == 0) {
    ::dup2(::open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    ::dup2(terminal.slave(), STDOUT_FILENO);
    ::dup2(::open(errors.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600), STDERR_FILENO);
    terminal.close_slave();
    ::execl("/bin/sh", "sh", "-c", script.c_str(), nullptr);
    ::_exit(127);
  }
  terminal.close_slave();
  const std::string out = terminal.read_all();
  int status = 0;
  ::waitpid(child, &status, 0);
  const int exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  std::string text = read_file(errors) + out;
  const std::string prefix = directory.string() + "/";  // another one in each run
  for (std::size_t at = 0; (at = text.find(prefix, at)) != std::string::npos;) text.erase(at, prefix.size());
  return text + (exit_code == 0 ? "" : "[exit code " + std::to_string(exit_code) + "]\n");
}

/// Empty lines at the end are not part of what a command printed.
std::string text_of(const std::vector<std::string>& lines) {
  std::string text;
  std::size_t count = lines.size();
  while (count > 0 && lines[count - 1].empty()) --count;
  for (std::size_t i = 0; i < count; ++i) text += lines[i] + "\n";
  return text;
}

bool is_command(const std::string& line) {
  return line.starts_with("$ ");
}

}  // namespace

std::string replay(const std::string& text, bool markdown) {
  const TempDir directory;
  fs::create_directory_symlink(testdata("").parent_path(), directory / "testdata");
  const std::vector<std::string> lines = lines_of(text);
  std::string renewed;
  bool in_transcript = !markdown;
  for (std::size_t i = 0; i < lines.size();) {
    const std::string& line = lines[i++];
    renewed += line + "\n";
    if (markdown && line.starts_with("```")) in_transcript = line == "```console";
    if (!in_transcript || !is_command(line)) continue;
    std::vector<std::string> old_lines;
    while (i < lines.size() && !is_command(lines[i]) && !(markdown && lines[i].starts_with("```")))
      old_lines.push_back(lines[i++]);
    const std::string before = text_of(old_lines);
    const std::string now = text_of(lines_of(output_of(line.substr(2), directory.path())));
    renewed += normalized(now) == normalized(before) ? before : markdown ? without_machine(now) : normalized(now);
    if (i < lines.size() && is_command(lines[i])) renewed += "\n";
  }
  return renewed;
}

std::string first_difference(const fs::path& file, const std::string& expected, const std::string& actual) {
  if (expected == actual) return {};
  const std::vector<std::string> a = lines_of(expected), b = lines_of(actual);
  std::size_t i = 0;
  while (i < a.size() && i < b.size() && a[i] == b[i]) ++i;
  const auto line = [i](const std::vector<std::string>& lines) {
    return i < lines.size() ? lines[i] : std::string("(end of the text)");
  };
  return file.string() + ", line " + std::to_string(i + 1) + "\n  in the file: " + line(a) +
         "\n  today:       " + line(b) + "\nif the new text is right, run scripts/renew-golden.sh";
}

void check_renewed(const fs::path& file, const std::function<std::string(const std::string&)>& renew) {
  const std::string text = read_file(file);
  const std::string renewed = renew(text);
  if (std::getenv("RESHARD_RENEW_GOLDEN") != nullptr && renewed != text) return write_file(file, renewed);
  const std::string difference = first_difference(file, text, renewed);
  if (!difference.empty()) FAIL_CHECK(difference);
}

void check_transcripts(const fs::path& file) {
  check_renewed(file, [&](const std::string& text) { return replay(text, file.extension() == ".md"); });
}

}  // namespace reshard::test
