#include "option_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"

namespace reshard::cli {
namespace {

/// Prefix of source options, in commands that have the same options for the target.
constexpr std::string_view kOfSource = "from-";

using Names = std::set<std::string, std::less<>>;

/// Names of the options of all commands.
Names& option_names() {
  static Names names;
  return names;
}

/// Names of the options of the parsed command; empty before parsing.
Names& names_of_command() {
  static Names names;
  return names;
}

void add_names(const Command& command, Names& names) {
  for (const Option& option : command.options())
    for (const std::string& name : option.long_names()) names.insert(name);
}

/// Returns the parsed command's name of the option.
std::string own_name(std::string_view name) {
  const Names& own = names_of_command();
  if (own.contains(name)) return std::string(name);
  std::string of_source = std::string(kOfSource) + std::string(name);
  if (own.contains(of_source)) return of_source;
  const bool is_of_source = name.starts_with(kOfSource) && own.contains(name.substr(kOfSource.size()));
  return std::string(is_of_source ? name.substr(kOfSource.size()) : name);
}

}  // namespace

void learn_option_names(const Command& program) {
  for (const Command& command : program.subcommands()) add_names(command, option_names());
}

void learn_command(const Command& command) {
  names_of_command().clear();
  add_names(command, names_of_command());
}

void validate_values(const Command& command) {
  for (const Option& option : command.options()) {
    if (option.is_switch()) continue;
    const OptionInfo& info = option.info();
    const std::string name = info.is_argument() ? info.names : "--" + option.long_names().front();
    const bool is_choice = !info.words.empty() && info.value == join(info.words, "|");
    for (const std::string& value : option.values()) {
      if (value.empty() && !info.is_argument())
        throw Error(ErrorKind::kUsage, name + ": the value is empty").hint("give a value, or leave out the option");
      if (!is_choice || std::find(info.words.begin(), info.words.end(), value) != info.words.end()) continue;
      Error error(ErrorKind::kUsage,
                  fmt::format("{}: \"{}\" is not one of {}", name, printable(value), join(info.words, ", ")));
      if (const std::string guess = nearest(value, info.words); !guess.empty())
        error.hint("did you mean " + guess + "?");
      throw error;
    }
  }
}

std::map<std::string, std::string> given_options(const Command& command) {
  const std::set<std::string_view> of_one_rank = {"resume", "clean", "help"};
  std::map<std::string, std::string> given = {{"the command", command.name()}};
  for (const Option& option : command.options()) {
    if (option.count() == 0 || option.long_names().empty() || option.info().of_run) continue;
    const std::string name = option.long_names().front();
    if (of_one_rank.contains(name)) continue;
    given["--" + name] = option.is_switch() ? std::string() : join(option.values(), " ");
  }
  return given;
}

std::string with_options(const std::string& text) {
  std::string result;
  std::size_t done = 0;
  for (std::size_t begin = text.find('`'); begin != std::string::npos; begin = text.find('`', begin + 1)) {
    const std::size_t end = text.find('`', begin + 1);
    if (end == std::string::npos) break;
    const std::string_view name(text.data() + begin + 1, end - begin - 1);
    if (!option_names().contains(name)) continue;  // the second backtick may begin a name
    result.append(text, done, begin - done).append("--").append(own_name(name));
    done = end + 1;
    begin = end;
  }
  return result.append(text, done);
}

}  // namespace reshard::cli
