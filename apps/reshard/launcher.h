#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace reshard::cli {

/// The value of an environment variable, or null. As std::getenv, which tests replace.
using Environment = std::function<const char*(const char* name)>;

/// Who started this process together with others.
struct Launcher {
  std::string name;    // in messages: "Open MPI's mpirun"
  std::uint32_t rank;  // of this process, from 0
  std::uint32_t size;  // processes started, 2 or more; 0 if the launcher does not say
  std::string family;  // the MPI under it: "openmpi", "mpich"; empty if unknown
};

/// The launcher that the environment shows: Open MPI's and MPICH's, Slurm's, Flux, PALS (HPE Cray), and any that sets
/// PMIx's variables. Returns std::nullopt without a launcher, or if it started one process alone. The first of its
/// variables that is set decides: an mpirun inside a Slurm job starts its own daemons with srun, whose variables the
/// processes inherit.
/// \throws Error kUsage for a variable of it that is not a number, or no rank below the size.
std::optional<Launcher> find_launcher(const Environment& environment);

/// Whether several processes share the work: --mpi.
enum class MpiUse { kAuto, kYes, kNo };

/// What --mpi says, the last one if it is given several times; else what RESHARD_MPI says; else kAuto. Reads argv by
/// itself: the ranks start before the command line is parsed, as its errors are theirs in common.
/// \throws Error kUsage for any other value.
MpiUse mpi_use(int argc, const char* const* argv, const Environment& environment);

/// Whether the command line asks for a text that depends on no checkpoint: --help, --version, inspect --print-family.
/// No ranks have to start for it.
bool only_prints(int argc, const char* const* argv);

/// The rank of this process under the launcher of its environment; 0 without one, or if its variables are wrong.
std::uint32_t rank_or_0(const Environment& environment) noexcept;

/// The launcher whose processes share the work; std::nullopt if this process works alone.
/// \throws Error kUsage for kYes without a launcher; as find_launcher, but not for kNo.
std::optional<Launcher> launcher_to_join(MpiUse use, const Environment& environment);

/// Seconds that the variable `name` gives; `otherwise` where it is unset or empty.
/// \throws Error kUsage for anything that is not a positive number.
double seconds_of(const Environment& environment, const char* name, double otherwise);

}  // namespace reshard::cli
