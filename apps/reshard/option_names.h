#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "command.h"

namespace reshard::cli {

/// Records the names of all subcommands' options for with_options.
void learn_option_names(const Command& program);

/// Records the parsed command, whose option names with_options prefers.
void learn_command(const Command& command);

/// Validates that no option of a parsed command has an empty value, which a shell passes for an unset variable, and that
/// values in the form "keep|drop" are among their choices.
/// \throws Error kUsage.
void validate_values(const Command& command);

/// Returns the options given to a parsed command, by name, with their values; empty for a switch. Omits options that
/// may differ between the ranks of a run (threads, memory and the like) and those for which rank 0's value counts.
std::map<std::string, std::string> given_options(const Command& command);

/// Replaces the library's parameter names in backticks, such as `tp`, or `from-tp` for the source, by this program's
/// options. `tp` becomes "--tp". "--from-tp" becomes "--tp", or the reverse, if the parsed command (learn_command) has
/// only the other one.
std::string with_options(const std::string& text);

}  // namespace reshard::cli
