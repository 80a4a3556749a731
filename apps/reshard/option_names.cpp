#include "option_names.h"

#include <set>

namespace reshard::cli {
namespace {

std::set<std::string, std::less<>>& option_names() {
  static std::set<std::string, std::less<>> names;
  return names;
}

}  // namespace

void learn_option_names(const CLI::App& app) {
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    for (const CLI::Option* option : command->get_options())
      for (const std::string& name : option->get_lnames()) option_names().insert(name);
}

std::string with_options(const std::string& text) {
  std::string result;
  std::size_t done = 0;
  for (std::size_t begin = text.find('`'); begin != std::string::npos; begin = text.find('`', begin + 1)) {
    const std::size_t end = text.find('`', begin + 1);
    if (end == std::string::npos) break;
    const std::string_view name(text.data() + begin + 1, end - begin - 1);
    if (!option_names().contains(name)) continue;  // the second backtick may begin a name
    result.append(text, done, begin - done).append("--").append(name);
    done = end + 1;
    begin = end;
  }
  return result.append(text, done);
}

std::vector<std::string> with_options(std::vector<std::string> texts) {
  for (std::string& text : texts) text = with_options(text);
  return texts;
}

}  // namespace reshard::cli
