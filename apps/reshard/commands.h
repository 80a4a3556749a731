// apps/: the program `reshard`: one file per subcommand, over the library in lib/. Arguments become a request, and the
// library's result is printed. Only main exits.
#pragma once

#include "command.h"
#include "reshard/engine/ranks/together.h"

namespace reshard::cli {

/// Each adds its subcommand to `app`; parsing it runs it, together with the other ranks if there are any. They print to
/// standard output, and throw Error. `together` is borrowed.
void add_shard(Command app, Together& together);
void add_consolidate(Command app, Together& together);
void add_inspect(Command app, Together& together);
void add_convert(Command app, Together& together);
/// Sets `exit_code` to 0 or kExitDifferent.
void add_verify(Command app, int& exit_code, Together& together);

/// What `verify` ends with where it finds a difference.
inline constexpr int kExitDifferent = 1;

}  // namespace reshard::cli
