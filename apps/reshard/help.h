#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "command.h"

namespace reshard::cli {

/// A request for help: `reshard help COMMAND TOPIC`, `reshard COMMAND --help TOPIC`.
struct HelpRequest {
  std::string command;  // empty: the program, or all commands if there is a topic
  std::string topic;    // one of topics_of, or an option; empty: the usual help
};

/// Returns the help that a command line asks for, whatever else it contains; std::nullopt if it asks for none, or if its
/// subcommand is unknown.
std::optional<HelpRequest> requested_help(const Command& program, const std::vector<std::string>& arguments);

/// Returns help for the width of the terminal.
/// \throws Error kUsage for an unknown topic, with the nearest name or all topics.
std::string help_text(const Command& program, const HelpRequest& request);

/// Returns what may follow --help: "all", the groups of options, and the layouts that have options of `command`.
std::vector<std::string> topics_of(const Command& command);

/// Returns the usage without the program's name: "shard [OPTIONS] MODEL_DIR OUT_DIR".
std::string usage_of(const Command& command);
/// Returns an option as the help shows it: "-f, --format NAME", "[OUT_DIR]".
std::string spelling_of(const Option& option);
/// Returns the description of an option with its default and the layouts that have it. `in_layout` omits a layout that
/// alone has it, for the section of that layout.
std::string description_of(const Option& option, bool in_layout = false);

/// Options of a command under one heading.
struct OptionSection {
  std::string heading;
  std::vector<Option> options;
  std::string layout;  // the layout that has these options, or empty
};
/// Returns all options of a command: those that everybody needs, each group, and, after the group Layout, each layout's.
/// An option of several layouts is in the section of each.
std::vector<OptionSection> sections_of(const Command& command);
std::vector<Option> arguments_of(const Command& command);

/// Exit codes of the program with their meanings, ascending.
std::vector<std::pair<int, std::string>> exit_codes();

}  // namespace reshard::cli
