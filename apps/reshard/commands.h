// apps/: the program `reshard`, one file per subcommand, on top of the library in lib/. Turns arguments into a request
// and prints the library's result. Only main exits.
#pragma once

#include "command.h"
#include "mpi_ranks.h"
#include "reshard/engine/ranks/together.h"

namespace reshard::cli {

/// Each adds its subcommand to `app`. Parsing it runs it, together with the other ranks if there are any. They print to
/// standard output and throw Error. `together` is borrowed.
void add_shard(Command app, Together& together);
void add_consolidate(Command app, Together& together);
void add_inspect(Command app, Together& together);
void add_convert(Command app, Together& together);
/// Adds completion, man and help. Call it last: help completes the names of the others.
void add_help_commands(Command app);
/// Sets `exit_code` to 0 or kExitDifferent.
void add_verify(Command app, int& exit_code, Together& together);
/// These work alone and print what is known about the program and the machine.
void add_version(Command app);
/// `open` is null in a build without MPI.
void add_doctor(Command app, OpenPlugin* open);

/// Exit code of `verify` if it finds a difference.
inline constexpr int kExitDifferent = 1;

}  // namespace reshard::cli
