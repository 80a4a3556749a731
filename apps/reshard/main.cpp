#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <system_error>
#include <utility>

#include "arguments.h"
#include "command.h"
#include "commands.h"
#include "launcher.h"
#include "option_names.h"
#include "print.h"
#include "reshard/base/error.h"
#include "reshard/engine/ranks/together.h"
#include "signals.h"
#include "table.h"
#include "version.h"
#include "word.h"

namespace {

using reshard::Error;
using reshard::ErrorKind;
using reshard::Together;

// main.cpp is compiled again for the static program, which cannot load plug-ins.
#ifdef RESHARD_WITHOUT_MPI
constexpr bool kHasMpi = false;
constexpr reshard::cli::OpenPlugin* kOpenPlugin = nullptr;
#else
constexpr bool kHasMpi = true;
constexpr reshard::cli::OpenPlugin* kOpenPlugin = reshard::cli::open_plugin;
#endif

int report(const Error& error) {
  std::string text = error.what();
  if (error.kind() == ErrorKind::kInterrupted) text = reshard::cli::with_signal_name(std::move(text));
  reshard::cli::print_message(fmt::format("reshard: {}", reshard::cli::with_options(text)));
  if (!error.hint().empty())
    reshard::cli::print_message(fmt::format("  try: {}", reshard::cli::with_options(error.hint())));
  return reshard::describe(error.kind()).exit_code;
}

/// Opens /dev/null for closed standard descriptors, so that no file of a run gets their numbers and their output.
/// Opened read-only: writing a report to a closed stream must fail.
void fill_standard_descriptors() {
  int fd = ::open("/dev/null", O_RDONLY);
  while (fd >= 0 && fd <= STDERR_FILENO) fd = ::open("/dev/null", O_RDONLY);
  if (fd > STDERR_FILENO) ::close(fd);
}

/// A checkpoint of many ranks has many files; the soft limit is often 1024, and the hard one far higher.
void allow_many_open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

int parse_and_run(int argc, char** argv, Together& together) {
  int exit_code = 0;
  reshard::cli::CommandLine command_line("reshard", std::string(reshard::cli::kDescription) + ".",
                                         std::string("reshard ") + reshard::cli::kVersion);
  const reshard::cli::Command program = command_line.program();
  reshard::cli::add_shard(program, together);
  reshard::cli::add_consolidate(program, together);
  reshard::cli::add_inspect(program, together);
  reshard::cli::add_convert(program, together);
  reshard::cli::add_verify(program, exit_code, together);
  reshard::cli::add_doctor(program, kOpenPlugin);
  reshard::cli::add_version(program);
  reshard::cli::add_help_commands(program);
  reshard::cli::learn_option_names(program);
  command_line.before_command([&](const reshard::cli::Command& command) {
    reshard::cli::learn_command(command);
    reshard::cli::validate_values(command);
    std::map<std::string, std::string> given = reshard::cli::given_options(command);
    given["reshard"] = reshard::cli::kVersion;
    together.set_given(std::move(given));
  });
  reshard::cli::parse_and_run(command_line, argc, argv);
  return exit_code;
}

/// Runs the command line, alone or as one of several processes. Processes return when all are done; an error on one
/// rank fails all of them.
/// \param wrong  an error that this process found before, or null.
/// \throws AgreedError and RankLost with others; anything alone.
int run(int argc, char** argv, const std::exception_ptr& wrong, Together& together) {
  reshard::Progress progress;
  int exit_code = 0;
  try {
    if (wrong) std::rethrow_exception(wrong);
    exit_code = parse_and_run(argc, argv, together);
  } catch (const reshard::AgreedError&) {
    throw;
  } catch (const reshard::RankLost&) {
    throw;
  } catch (const reshard::cli::ReaderGone&) {
    exit_code = 128 + SIGPIPE;  // as shells report programs that a signal ended
  } catch (...) {
    together.fail(std::current_exception());
  }
  try {
    together.step("end", progress, [] {});
  } catch (const reshard::RankLost&) {
    if (!together.leads()) throw;  // rank 0 has finished and reported
  }
  return exit_code;
}

/// Exits without destructors or MPI, which would wait for ranks that never arrive.
[[noreturn]] void leave(int exit_code) {
  std::fflush(nullptr);
  ::_exit(exit_code);
}

/// Reports an error of a process that could not join the others.
int report_apart(Error error, const std::optional<reshard::cli::Launcher>& launcher) {
  reshard::cli::Word word(reshard::cli::word_key(::getenv));
  const int exit_code = reshard::describe(error.kind()).exit_code;
  if (!reshard::cli::takes_word(word, launcher)) return exit_code;
  if (launcher && launcher->rank != 0)
    error.by(fmt::format("rank {} on {}", launcher->rank, reshard::cli::host_name()));
  reshard::cli::set_muted(false);
  report(error);
  reshard::cli::linger();
  return exit_code;
}

/// \param wrong  see run. It is sent to the others, since only this process may have found it.
int run_with_others(int argc, char** argv, std::exception_ptr wrong, const reshard::cli::Launcher& launcher) {
  reshard::cli::set_muted(launcher.rank != 0);
  reshard::cli::set_no_terminal();
  reshard::cli::MpiLimits limits;
  try {
    limits = reshard::cli::mpi_limits(::getenv);
  } catch (...) {
    if (!wrong) wrong = std::current_exception();
  }
  std::unique_ptr<reshard::cli::MpiRanks> ranks;
  try {
    ranks = reshard::cli::start_mpi(launcher, limits, ::getenv, kOpenPlugin);
  } catch (...) {
    return report_apart(reshard::as_error(wrong ? wrong : std::current_exception()), launcher);
  }
  ranks->mind_stop(&reshard::cli::signal_came());
  reshard::cli::set_muted(ranks->rank() != 0);
  int exit_code = 0;
  try {
    Together together(*ranks, reshard::cli::host_name());
    exit_code = run(argc, argv, wrong, together);
  } catch (const reshard::AgreedError& error) {
    exit_code = report(error);
  } catch (const reshard::RankLost& lost) {
    reshard::cli::set_muted(false);  // rank 0 may be the lost one
    Error error(lost);
    error.by(fmt::format("rank {} on {}", ranks->rank(), reshard::cli::host_name()));
    leave(report(error));
  }
  reshard::cli::note_done(exit_code);     // a launcher may end the others when the first has ended
  if (ranks->broken()) leave(exit_code);  // after publication
  ranks->finish(exit_code);
  return exit_code;
}

int run_program(int argc, char** argv) {
  reshard::cli::mind_stop_signals();
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is an error, and must not kill the program half-way
  std::signal(SIGXFSZ, SIG_IGN);  // likewise a file size limit
  fill_standard_descriptors();
  allow_many_open_files();
  try {
    if (reshard::cli::only_prints(argc, argv)) {
      reshard::cli::set_muted(reshard::cli::rank_or_0(::getenv) != 0);
      Together alone;
      return run(argc, argv, nullptr, alone);
    }
    std::exception_ptr wrong;
    reshard::cli::MpiUse use = reshard::cli::MpiUse::kAuto;
    try {
      use = reshard::cli::mpi_use(argc, argv, ::getenv);
    } catch (...) {
      wrong = std::current_exception();
    }
    std::optional<reshard::cli::Launcher> launcher;
    try {
      if (!kHasMpi && use == reshard::cli::MpiUse::kYes) throw reshard::cli::no_mpi("--mpi yes");
      launcher = reshard::cli::launcher_to_join(use, ::getenv);
    } catch (...) {
      return report_apart(reshard::as_error(wrong ? wrong : std::current_exception()), {});
    }
    if (launcher) return run_with_others(argc, argv, wrong, *launcher);
    Together alone;
    return run(argc, argv, wrong, alone);
  } catch (...) {
    return report(reshard::as_error(std::current_exception()));
  }
}

struct ProgramCall {
  int argc;
  char** argv;
  int exit_code = 0;
};

void* run_call(void* call) {
  auto& [argc, argv, exit_code] = *static_cast<ProgramCall*>(call);
  exit_code = run_program(argc, argv);
  return nullptr;
}

/// Runs the program with the usual stack for this and all other threads, although `ulimit -s` allows less.
int run_with_usual_stack(ProgramCall call) {
  constexpr std::size_t kUsualBytes = std::size_t{8} << 20;
  rlimit limit{};
  pthread_attr_t attributes;
  if (::getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= kUsualBytes || ::pthread_attr_init(&attributes) != 0)
    return run_program(call.argc, call.argv);
  pthread_t thread;
  const bool has_stack = ::pthread_attr_setstacksize(&attributes, kUsualBytes) == 0 &&
                         ::pthread_setattr_default_np(&attributes) == 0 &&
                         ::pthread_create(&thread, &attributes, run_call, &call) == 0;
  ::pthread_attr_destroy(&attributes);
  if (!has_stack) return run_program(call.argc, call.argv);
  ::pthread_join(thread, nullptr);
  return call.exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  return run_with_usual_stack({argc, argv});
}
