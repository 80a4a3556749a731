#pragma once

#include <optional>
#include <string>
#include <vector>

#include "command.h"

namespace reshard::cli {

/// Translates options of other programs (NxD's checkpoint converter, optimum-cli, inference_demo, vLLM) into this
/// program's, if they have the same meaning: --tensor_parallel_size 2 becomes --tp 2. Keeps options that the subcommand
/// has, and unknown ones. Hyphens and underscores in names are equivalent. "help" becomes --help.
std::vector<std::string> in_own_words(const Command& program, std::vector<std::string> arguments);

/// Returns this program's option with the same meaning as another program's option `name`; otherwise `name` with
/// hyphens.
std::string own_option(const std::string& name);

/// Explains what to do instead of giving `command` the option `name` of another program; std::nullopt if it is unknown,
/// or if neither `command` nor convert has an equivalent.
std::optional<std::string> advice_on(const Command& command, const std::string& name);

/// Returns the names of the command's options, with hyphens.
std::vector<std::string> option_names(const Command& command);

}  // namespace reshard::cli
