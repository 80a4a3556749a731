// Signals that ask the program to stop, whatever it is doing.

#include "signals.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <thread>

#include "print.h"
#include "support/catch.h"
#include "support/files.h"
#include "support/temp_dir.h"

using namespace reshard::test;
namespace fs = std::filesystem;

namespace {

const std::string kModel = testdata("golden/optimum/llama-tp8-gqa/original").string();

/// The program with a standard output that takes 4 KiB and that nobody reads: it cannot end while it has more to say.
class Started {
 public:
  explicit Started(std::vector<std::string> arguments, int ignored_signal = 0) {
    arguments.insert(arguments.begin(), RESHARD_PROGRAM);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    const std::string err = (captured_ / "err").string();
    REQUIRE(::pipe2(pipe_, O_CLOEXEC) == 0);
    REQUIRE(::fcntl(pipe_[1], F_SETPIPE_SZ, 4096) == 4096);
    int executed[2];  // comes to its end once the program itself runs, not a copy of this one with its signal handlers
    REQUIRE(::pipe2(executed, O_CLOEXEC) == 0);
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ != 0) {
      ::close(executed[1]);
      char byte;
      REQUIRE(::read(executed[0], &byte, 1) == 0);
      ::close(executed[0]);
      return;
    }
    ::dup2(pipe_[1], STDOUT_FILENO);
    ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT, 0600), STDERR_FILENO);
    if (ignored_signal != 0) std::signal(ignored_signal, SIG_IGN);
    ::execv(argv[0], argv.data());
    ::_exit(99);
  }
  Started(const Started&) = delete;
  Started& operator=(const Started&) = delete;
  ~Started() {
    if (!ended()) ::kill(pid_, SIGKILL);
    if (!ended_) ::waitpid(pid_, nullptr, 0);
    for (const int fd : pipe_) ::close(fd);
  }

  /// Returns once the program minds SIGTERM.
  void wait_until_it_minds() {
    REQUIRE(within_ten_seconds([&] { return mask("SigCgt") >> (SIGTERM - 1) & 1; }));
  }
  bool ignores(int signal) const { return mask("SigIgn") >> (signal - 1) & 1; }
  void send(int signal) { REQUIRE(::kill(pid_, signal) == 0); }
  /// Sends SIGTERM again and again until the program has ended.
  void insist() {
    REQUIRE(within_ten_seconds([&] { return ended() || (::kill(pid_, SIGTERM), false); }));
  }
  void wait_for_end() {
    REQUIRE(within_ten_seconds([&] { return ended(); }));
  }
  template <typename Condition>
  static bool within_ten_seconds(Condition&& holds) {
    for (int i = 0; i < 2000; ++i, std::this_thread::sleep_for(std::chrono::milliseconds(5)))
      if (holds()) return true;
    return false;
  }

  /// Of a program that has ended; -1 if a signal killed it.
  int exit_code() const { return WIFEXITED(status_) ? WEXITSTATUS(status_) : -1; }
  std::string err() const { return read_file(captured_ / "err"); }

 private:
  bool ended() {
    if (!ended_) ended_ = ::waitpid(pid_, &status_, WNOHANG) == pid_;
    return ended_;
  }
  std::uint64_t mask(const std::string& key) const {
    std::ifstream status("/proc/" + std::to_string(pid_) + "/status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with(key + ":")) return std::stoull(line.substr(key.size() + 1), nullptr, 16);
    return 0;
  }

  TempDir captured_;
  int pipe_[2] = {-1, -1};
  pid_t pid_ = -1;
  int status_ = 0;
  bool ended_ = false;
};

}  // namespace

TEST_CASE("Each signal that stops a run also stops what comes before one and after it, with exit code 130") {
  for (const auto& [signal, name] : {std::pair(SIGINT, "SIGINT"),
                                     {SIGTERM, "SIGTERM"},
                                     {SIGHUP, "SIGHUP"},
                                     {SIGQUIT, "SIGQUIT"},
                                     {SIGUSR2, "SIGUSR2"}}) {
    INFO("signal " << name);
    Started program({"inspect", kModel, "--json"});
    program.wait_until_it_minds();
    program.send(signal);
    program.wait_for_end();
    CHECK(program.exit_code() == 130);
    CHECK(program.err() == std::string("reshard: stopped by ") + name + "\n");
  }
}

TEST_CASE("A signal that was ignored when the program started stays ignored, as under nohup") {
  Started program({"inspect", kModel, "--json"}, SIGHUP);
  program.wait_until_it_minds();
  CHECK(program.ignores(SIGHUP));
  CHECK_FALSE(program.ignores(SIGINT));
  program.send(SIGHUP);
  program.send(SIGTERM);
  program.wait_for_end();
  CHECK(program.exit_code() == 130);
}

TEST_CASE("A second signal ends a run at once, unless it is the first again or outputs are being published") {
  using reshard::RunPhase;
  for (const RunPhase phase : {RunPhase::kMoving, RunPhase::kFlushing, RunPhase::kPublishing}) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      reshard::cli::mind_stop_signals();
      reshard::cli::set_muted(true);
      reshard::Progress progress;
      const reshard::cli::StoppableRun run(progress);
      progress.phase = phase;
      for (int i = 0; i < 3; ++i) ::raise(i == 1 ? SIGINT : SIGTERM);
      if (!progress.stop) ::_exit(1);
      std::this_thread::sleep_for(std::chrono::milliseconds(1100));
      ::raise(SIGTERM);
      ::_exit(2);  // it goes on
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == (phase == RunPhase::kPublishing ? 2 : 130));
  }
}

TEST_CASE("A signal that comes once the outputs stand does not make a failure of the run") {
  const TempDir dir;
  Started program({"shard", kModel, (dir / "o").string(), "--tp", "8", "--json"});
  REQUIRE(Started::within_ten_seconds([&] { return fs::exists(dir / "o/tensor_parallel_shards"); }));
  program.insist();
  CHECK(program.exit_code() == 0);
  CHECK(program.err().empty());
  CHECK(fs::exists(dir / "o/tensor_parallel_shards/tp_rank_07_pp_rank_00/checkpoint.pt"));
}
