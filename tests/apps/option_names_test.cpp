#include "option_names.h"

#include <map>
#include <string>
#include <vector>

#include "support/catch.h"

namespace reshard::cli {
namespace {

TEST_CASE("Parameters that are options are printed as such, all else stays") {
  CommandLine command_line("", "", "");
  Command command = command_line.program().add_subcommand("shard", "");
  std::string tp;
  bool force = false;
  command.add_option({"--tp"}, tp);
  command.add_option({"-f,--force"}, force);
  learn_option_names(command_line.program());
  const auto [text, expected] = GENERATE(table<std::string, std::string>({
      {"choose a smaller `tp`", "choose a smaller --tp"},
      {"`force` and `tp` 4", "--force and --tp 4"},
      {"the tensor `x` has no place", "the tensor `x` has no place"},
      {"``tp`", "`--tp"},
      {"`tp", "`tp"},
      {"`", "`"},
      {"", ""},
      {"`x`tp`", "`x--tp"},
  }));
  CHECK(with_options(text) == expected);
}

TEST_CASE("Parameters get the names that the command which was parsed has for them") {
  CommandLine command_line("", "", "");
  std::string value;
  Command read = command_line.program().add_subcommand("read-part", "");
  for (const char* option : {"--part", "--both"}) read.add_option({option}, value);
  Command change = command_line.program().add_subcommand("change-part", "");
  for (const char* option : {"--from-part", "--both", "--from-both"}) change.add_option({option}, value);
  learn_option_names(command_line.program());
  CHECK(with_options("`part`, `both`, `from-both`") == "--part, --both, --from-both");
  learn_command(change);
  CHECK(with_options("`part`, `both`, `from-both`") == "--from-part, --both, --from-both");
  learn_command(read);
  CHECK(with_options("`part`, `both`, `from-part`") == "--part, --both, --part");
}

TEST_CASE("What a command was given are its options with their values, without those of one rank alone") {
  CommandLine command_line("", "", "");
  Command command = command_line.program().add_subcommand("shard", "");
  std::string in, tp, format, threads;
  std::vector<std::string> drop;
  bool force = false, quiet = false;
  command.add_option({"IN"}, in);
  command.add_option({"--tp"}, tp);
  command.add_option({"--format"}, format);
  command.add_option({.names = "--threads", .of_run = true}, threads);
  command.add_option({"--drop"}, drop);
  command.add_option({"-f,--force"}, force);
  command.add_option({.names = "--quiet", .of_run = true}, quiet);
  command_line.parse({"shard", "model", "--tp", "4", "--threads", "2", "-f", "--quiet", "--drop", "a", "--drop", "b"});
  CHECK(given_options(command) == std::map<std::string, std::string>{
                                      {"the command", "shard"}, {"--tp", "4"}, {"--force", ""}, {"--drop", "a b"}});
}

}  // namespace
}  // namespace reshard::cli
