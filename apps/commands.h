// apps/: the program `reshard`: one file a subcommand, over the library in lib/. Arguments become a request; what the
// library answers is printed. No exit but from main.
#pragma once

#include <CLI/CLI.hpp>

namespace reshard::cli {

/// Each adds its subcommand to `app`; parsing it runs it. They print to standard output, and throw Error.
void add_shard(CLI::App& app);
void add_consolidate(CLI::App& app);
void add_inspect(CLI::App& app);

}  // namespace reshard::cli
