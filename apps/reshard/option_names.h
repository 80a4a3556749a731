#pragma once

#include <map>
#include <string>
#include <vector>

#include "command.h"

namespace reshard::cli {

/// Takes the names of all options of the subcommands, for with_options.
void learn_option_names(const Command& program);

/// Takes the command that was parsed, whose names of options with_options prefers.
void learn_command(const Command& command);

/// Validates that no option of a command that was parsed has an empty value, which a shell makes of a variable that is
/// not set.
/// \throws Error kUsage.
void validate_values(const Command& command);

/// What a command that was parsed was given, by name, with its values; empty for a switch. Without what may differ
/// between the ranks of a run: threads, memory and the like, and what counts as rank 0 has it.
std::map<std::string, std::string> given_options(const Command& command);

/// The library speaks of parameters, in backticks: `tp`, or `from-tp` for the source's. Those that are options of this
/// program become "--tp"; "--from-tp" becomes "--tp", or the reverse, where the command that was parsed (learn_command)
/// has only the other one.
std::string with_options(const std::string& text);
std::vector<std::string> with_options(std::vector<std::string> texts);

}  // namespace reshard::cli
