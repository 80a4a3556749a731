#pragma once

#include <optional>
#include <string>
#include <vector>

#include "command.h"

namespace reshard::cli {

/// Command line arguments with the options of other programs (NxD's checkpoint converter, optimum-cli, inference_demo,
/// vLLM) in this program's words, as far as both mean the same: --tensor_parallel_size 2 becomes --tp 2. Options that
/// the subcommand knows, and those that are not known at all, stay as they are. Hyphens and underscores in names count
/// as equal. "help" becomes --help.
std::vector<std::string> in_own_words(const Command& program, std::vector<std::string> arguments);

/// The option of this program that means the same as `name`, an option of another; else `name` with hyphens.
std::string own_option(const std::string& name);

/// What to do instead of giving `command` the option `name` of another program; std::nullopt if it is unknown, or if
/// neither `command` nor convert does what it asks for.
std::optional<std::string> advice_on(const Command& command, const std::string& name);

/// Names of the command's options, with their hyphens.
std::vector<std::string> option_names(const Command& command);

}  // namespace reshard::cli
