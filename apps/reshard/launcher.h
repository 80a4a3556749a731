#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace reshard::cli {

/// Returns the value of an environment variable, or null, like std::getenv. Tests replace it.
using Environment = std::function<const char*(const char* name)>;

/// The launcher that started this process together with others.
struct Launcher {
  std::string name;    // in messages: "Open MPI's mpirun"
  std::uint32_t rank;  // of this process, from 0
  std::uint32_t size;  // number of processes, at least 2; 0 if the launcher does not report it
  std::string family;  // its MPI implementation: "openmpi", "mpich"; empty if unknown
};

/// Detects the launcher from the environment: Open MPI, MPICH, Slurm, Flux, PALS (HPE Cray), or any that sets PMIx's
/// variables. Returns std::nullopt without a launcher, or if it started a single process. The first variable that is
/// set decides: an mpirun inside a Slurm job starts its daemons with srun, whose variables the processes inherit.
/// \throws Error kUsage if one of its variables is not a number, or if the rank is not below the size.
std::optional<Launcher> find_launcher(const Environment& environment);

/// Whether several processes share the work (--mpi).
enum class MpiUse { kAuto, kYes, kNo };

/// Returns the last value of --mpi, or else that of RESHARD_MPI, or else kAuto. Reads argv itself: ranks start before
/// the command line is parsed, so that they report its errors together.
/// \throws Error kUsage for any other value.
MpiUse mpi_use(int argc, const char* const* argv, const Environment& environment);

/// Whether the command line only prints a text that depends on no checkpoint (help, version, doctor, inspect
/// --print-family), so that no ranks need to start.
bool only_prints(int argc, const char* const* argv);

/// Returns the rank of this process under its launcher; 0 without a launcher, or if its variables are invalid.
std::uint32_t rank_or_0(const Environment& environment) noexcept;

/// Returns the launcher whose processes share the work; std::nullopt if this process works alone.
/// \throws Error kUsage for kYes without a launcher; as find_launcher, but not for kNo.
std::optional<Launcher> launcher_to_join(MpiUse use, const Environment& environment);

/// Returns the environment variable `name` in seconds; `otherwise` if it is unset or empty.
/// \throws Error kUsage for anything but a positive number.
double seconds_of(const Environment& environment, const char* name, double otherwise);

}  // namespace reshard::cli
