#include "man_page.h"

#include <fmt/format.h>

#include <cctype>
#include <set>
#include <string>

#include "environment.h"
#include "help.h"
#include "option_table.h"
#include "reshard/base/strings.h"

namespace reshard::cli {
namespace {

/// Escapes a line of text for troff.
std::string troff(const std::string& text) {
  std::string escaped = text.starts_with('.') || text.starts_with('\'') ? "\\&" : "";
  for (const char c : text) {
    if (c == '\\')
      escaped += "\\e";
    else if (c == '-')
      escaped += "\\-";
    else
      escaped += c;
  }
  return escaped;
}

/// A paragraph with a tag.
std::string tagged(const std::string& tag, const std::string& text) {
  return fmt::format(".TP\n.B {}\n{}\n", troff(tag), troff(text));
}

std::string variable_entry(const Variable& variable) {
  std::string text = variable.effect;
  if (*variable.fallback) text += fmt::format(" (default: {})", variable.fallback);
  std::erase(text, '`');
  text.front() = static_cast<char>(std::toupper(text.front()));
  return tagged(variable.name, text);
}

std::string command_page(const Command& command) {
  const CommandRow& row = *command_row(command.name());
  std::string text =
      fmt::format(".SS reshard {}\n{}.\n{}.\n", troff(usage_of(command)), troff(row.summary), troff(row.when));
  for (const Option& argument : arguments_of(command)) text += tagged(spelling_of(argument), description_of(argument));
  std::set<std::string> shown;
  for (const OptionSection& section : sections_of(command)) {
    text += fmt::format(".PP\n.I {}\n", troff(section.heading));
    for (const Option& option : section.options)
      if (shown.insert(option.info().names).second)
        text += tagged(spelling_of(option), description_of(option, !section.layout.empty()));
  }
  return text;
}

}  // namespace

std::string man_page(const Command& program, const std::string& version) {
  std::string text = fmt::format(
      ".TH RESHARD 1 \"\" \"reshard {}\" \"User Commands\"\n.SH NAME\nreshard \\- convert sharded checkpoints of large "
      "models\n.SH SYNOPSIS\n.B reshard\n.I COMMAND\n.RI [ OPTIONS ]\n.I ARGUMENT ...\n.SH DESCRIPTION\n{}\n",
      troff(version), troff(program.description()));
  for (const Command& command : program.subcommands()) text += tagged(command.name(), command.description());
  text += ".SH COMMANDS\n";
  for (const Command& command : program.subcommands()) text += command_page(command);
  text += ".SH EXIT STATUS\n";
  for (const auto& [code, meaning] : exit_codes()) text += tagged(std::to_string(code), meaning);
  text += ".SH ENVIRONMENT\n";
  for (const Variable& variable : kVariables) text += variable_entry(variable);
  text += ".SH EXAMPLES\n";
  for (const CommandRow& row : command_rows())
    for (const Example& example : row.examples) text += tagged(fmt::format("reshard {}", example.text()), example.what);
  return text;
}

}  // namespace reshard::cli
