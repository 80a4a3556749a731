#include "option_names.h"

#include <map>
#include <string>
#include <vector>

#include "support/catch.h"

namespace reshard::cli {
namespace {

TEST_CASE("Parameters that are options are printed as such, all else stays") {
  CLI::App app;
  CLI::App* command = app.add_subcommand("shard");
  command->add_option("--tp")->expected(1);
  command->add_flag("-f,--force");
  learn_option_names(app);
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
  CLI::App app;
  CLI::App* read = app.add_subcommand("read-part");
  read->add_option("--part");
  read->add_option("--both");
  CLI::App* change = app.add_subcommand("change-part");
  for (const char* option : {"--from-part", "--both", "--from-both"}) change->add_option(option);
  learn_option_names(app);
  CHECK(with_options("`part`, `both`, `from-both`") == "--part, --both, --from-both");
  learn_command(*change);
  CHECK(with_options("`part`, `both`, `from-both`") == "--from-part, --both, --from-both");
  learn_command(*read);
  CHECK(with_options("`part`, `both`, `from-part`") == "--part, --both, --part");
}

TEST_CASE("What a command was given are its options with their values, without those of one rank alone") {
  CLI::App app;
  CLI::App* command = app.add_subcommand("shard");
  std::string in, tp, format, threads;
  std::vector<std::string> drop;
  command->add_option("IN", in);
  command->add_option("--tp", tp);
  command->add_option("--format", format);
  command->add_option("--threads", threads);
  command->add_option("--drop", drop);
  command->add_flag("-f,--force");
  command->add_flag("--quiet");
  app.parse("shard model --tp 4 --threads 2 -f --quiet --drop a --drop b");
  CHECK(given_options(*command) == std::map<std::string, std::string>{
                                       {"the command", "shard"}, {"--tp", "4"}, {"--force", ""}, {"--drop", "a b"}});
}

}  // namespace
}  // namespace reshard::cli
