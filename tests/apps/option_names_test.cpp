#include "option_names.h"

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

}  // namespace
}  // namespace reshard::cli
