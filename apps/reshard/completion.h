#pragma once

#include <string>

#include "command.h"

namespace reshard::cli {

/// Returns a script that completes command lines of `program` in bash, zsh or fish: subcommands, options, layouts,
/// formats, families, files and directories. It does not run the program.
std::string completion_script(const Command& program, const std::string& shell);

}  // namespace reshard::cli
