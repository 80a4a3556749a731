#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <new>
#include <sstream>
#include <system_error>

#include "arguments.h"
#include "commands.h"
#include "option_names.h"
#include "print.h"
#include "reshard/base/error.h"
#include "signals.h"
#include "table.h"
#include "version.h"

namespace {

using reshard::Error;
using reshard::ErrorKind;

std::string footer() {
  std::string text =
      fmt::format("Exit codes:\n    0 done\n  {:>3} verify: the two differ", reshard::cli::kExitDifferent);
  for (const reshard::ErrorKindRow& row : reshard::kErrorKinds)
    text += fmt::format("\n  {:>3} {}", row.exit_code, row.meaning);
  return text + "\n  141 standard output was closed";
}

int report(const Error& error) {
  reshard::cli::print_message(fmt::format("reshard: {}", reshard::cli::with_options(error.what())));
  if (!error.hint().empty())
    reshard::cli::print_message(fmt::format("  try: {}", reshard::cli::with_options(error.hint())));
  return reshard::describe(error.kind()).exit_code;
}

/// Standard input, output and error exist, so that no file of a run takes their numbers and gets their text.
void fill_standard_descriptors() {
  int fd = ::open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO) fd = ::open("/dev/null", O_RDWR);
  if (fd > STDERR_FILENO) ::close(fd);
}

/// A checkpoint of many ranks has many files; the soft limit is often 1024 where the hard one is far more.
void allow_many_open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

/// Help as wide as the terminal.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(kNameColumns); }

  std::string make_description(const CLI::App* app) const override {
    return reshard::cli::wrap(app->get_description(), 0) + "\n";
  }
  std::string make_subcommand(const CLI::App* command) const override {
    std::ostringstream out;
    CLI::detail::format_help(out, command->get_name(), beside_names(command->get_description()), kNameColumns);
    return out.str();
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    return beside_names(option->get_description());
  }

 private:
  /// In lines that fit the column of descriptions.
  static std::string beside_names(const std::string& text) {
    return reshard::cli::wrap(text, 0, reshard::cli::table_columns() - kNameColumns);
  }

  static constexpr std::size_t kNameColumns = 30;
};

int run(int argc, char** argv) {
  int exit_code = 0;
  CLI::App app("Moves the weights of large models between whole checkpoints and per-rank shards.", "reshard");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("reshard ") + reshard::cli::kVersion);
  app.formatter(std::make_shared<HelpFormatter>());
  app.footer(footer());
  reshard::cli::add_shard(app);
  reshard::cli::add_consolidate(app);
  reshard::cli::add_inspect(app);
  reshard::cli::add_convert(app);
  reshard::cli::add_verify(app, exit_code);
  reshard::cli::learn_option_names(app);
  reshard::cli::parse_and_run(app, argc, argv);
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  reshard::cli::mind_stop_signals();
  std::signal(SIGPIPE, SIG_IGN);  // a reader that goes away is an error, and no death half-way
  std::signal(SIGXFSZ, SIG_IGN);  // so is a file size limit
  fill_standard_descriptors();
  allow_many_open_files();
  try {
    return run(argc, argv);
  } catch (const reshard::cli::ReaderGone&) {
    return 128 + SIGPIPE;  // as a shell has it of programs that it ends; nobody is left to be told
  } catch (const Error& error) {
    return report(error);
  } catch (const std::filesystem::filesystem_error& error) {
    return report(Error(ErrorKind::kIo, error.code().message()).in(error.path1()));
  } catch (const std::bad_alloc&) {
    return report(Error(ErrorKind::kIo, "out of memory").hint("give less with --max-memory or --threads"));
  } catch (const std::system_error& error) {
    return report(Error(ErrorKind::kIo, error.what()));
  } catch (const std::exception& error) {
    return report(Error(ErrorKind::kInternal, error.what()));
  }
}
