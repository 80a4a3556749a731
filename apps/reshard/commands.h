// apps/: the program `reshard`: one file a subcommand, over the library in lib/. Arguments become a request; what the
// library answers is printed. No exit but from main.
#pragma once

#include <CLI/CLI.hpp>

namespace reshard::cli {

/// Each adds its subcommand to `app`; parsing it runs it. They print to standard output, and throw Error.
void add_shard(CLI::App& app);
void add_consolidate(CLI::App& app);
void add_inspect(CLI::App& app);
void add_convert(CLI::App& app);
/// Sets `exit_code` to 0 or kExitDifferent.
void add_verify(CLI::App& app, int& exit_code);

/// What `verify` ends with where it finds a difference.
inline constexpr int kExitDifferent = 1;

}  // namespace reshard::cli
