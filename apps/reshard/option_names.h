#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace reshard::cli {

/// Takes the names of all options of the subcommands, for with_options.
void learn_option_names(const CLI::App& app);

/// The library speaks of parameters, in backticks: `tp`. Those that are options of this program become "--tp".
std::string with_options(const std::string& text);
std::vector<std::string> with_options(std::vector<std::string> texts);

}  // namespace reshard::cli
