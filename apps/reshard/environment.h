#pragma once

namespace reshard::cli {

/// An environment variable that changes what the program does. Texts are parts of sentences, with options and values in
/// backticks.
struct Variable {
  const char* name;
  const char* effect;
  const char* fallback;  // what applies without it; may be empty
};

/// For the manual page and docs/environment.md. Omits variables by which launchers tell a process its rank.
inline constexpr Variable kVariables[] = {
    {"RESHARD_MPI", "default of `--mpi`: `auto`, `yes` or `no`", "`auto`"},
    {"RESHARD_MPI_PLUGIN", "path of the plug-in for MPI", "searched for next to the program and in its prefix"},
    {"RESHARD_MPI_START_TIMEOUT", "seconds to wait for the other processes at the start, and at the end", "60"},
    {"RESHARD_MPI_TIMEOUT", "seconds to wait for a process that does not answer", "600"},
    {"RESHARD_JOURNAL_INTERVAL",
     "seconds between journals, from which `--resume` continues; in long runs, a fiftieth of the time so far if that "
     "is "
     "more",
     "10"},
    {"RESHARD_SIMD",
     "instruction set of casts, comparisons, copies of runs of up to 256 bytes, and transposes: one that the machine "
     "has, "
     "such as `avx2`, or `scalar`. For tests; the outputs are the same",
     "the best one"},
    {"NO_COLOR", "if set: no colours, unless `--color always` asks for them", ""},
    {"TERM", "if `dumb` or unset: progress in lines instead of a bar, no colours", ""},
};

}  // namespace reshard::cli
