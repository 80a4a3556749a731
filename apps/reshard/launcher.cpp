#include "launcher.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"

namespace reshard::cli {
namespace {

constexpr double kMaxSeconds = 1e9;  // 30 years: sums of naps stay exact, and clocks do not overflow

/// Empty where the variable is unset: `NAME= command` is how a shell unsets one for a command.
std::string_view value_of(const Environment& environment, const char* name) {
  const char* value = environment(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

struct Variables {
  const char* size;
  const char* rank;
};
constexpr Variables kOpenMpi = {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"};
constexpr Variables kPmi = {"PMI_SIZE", "PMI_RANK"};
constexpr Variables kSlurmStep = {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"};  // SLURM_NTASKS: set in batch scripts, too

/// Nothing if the numbers are of no launcher of several processes.
std::optional<Launcher> launcher_of(const Environment& environment, const Variables& variables, const char* name,
                                    const char* family) {
  const auto size = parse_unsigned(value_of(environment, variables.size), INT32_MAX);
  const auto rank = parse_unsigned(value_of(environment, variables.rank), INT32_MAX);
  if (!size || !rank || *size < 2 || *rank >= *size) return std::nullopt;
  return Launcher{name, static_cast<std::uint32_t>(*rank), static_cast<std::uint32_t>(*size), family};
}

MpiUse parse_mpi_use(const char* option, std::string_view text) {
  if (text == "auto") return MpiUse::kAuto;
  if (text == "yes") return MpiUse::kYes;
  if (text == "no") return MpiUse::kNo;
  throw Error(ErrorKind::kUsage, fmt::format("{}: \"{}\" is not one of auto, yes, no", option, printable(text)));
}

}  // namespace

std::optional<Launcher> find_launcher(const Environment& environment) {
  const auto is_set = [&](const char* name) { return !value_of(environment, name).empty(); };
  if (is_set(kOpenMpi.size)) return launcher_of(environment, kOpenMpi, "Open MPI's mpirun", "openmpi");
  if (is_set(kPmi.size)) {
    const bool is_srun = is_set(kSlurmStep.size) && !is_set("MPI_LOCALNRANKS");  // that one is hydra's
    return launcher_of(environment, kPmi, is_srun ? "srun --mpi=pmi2" : "MPICH's mpirun", "mpich");
  }
  if (!is_set(kSlurmStep.size)) return std::nullopt;
  if (is_set("PMIX_RANK")) return launcher_of(environment, kSlurmStep, "srun --mpi=pmix", "openmpi");
  return launcher_of(environment, kSlurmStep, "srun", "");
}

MpiUse mpi_use(int argc, const char* const* argv, const Environment& environment) {
  constexpr std::string_view kOption = "--mpi";
  std::optional<MpiUse> use;
  for (int i = 1; i < argc && std::string_view(argv[i]) != "--"; ++i) {
    const std::string_view argument = argv[i];
    if (argument.substr(0, kOption.size()) != kOption) continue;
    const std::string_view rest = argument.substr(kOption.size());
    if (!rest.empty() && rest[0] == '=')
      use = parse_mpi_use("--mpi", rest.substr(1));
    else if (rest.empty() && i + 1 < argc)
      use = parse_mpi_use("--mpi", argv[++i]);
  }
  if (use) return *use;
  const std::string_view value = value_of(environment, "RESHARD_MPI");
  return value.empty() ? MpiUse::kAuto : parse_mpi_use("RESHARD_MPI", value);
}

std::optional<Launcher> launcher_to_join(MpiUse use, const Environment& environment) {
  if (use == MpiUse::kNo) return std::nullopt;
  auto launcher = find_launcher(environment);
  if (use == MpiUse::kYes && !launcher)
    throw Error(ErrorKind::kUsage, "--mpi yes, but no launcher of MPI started this process with others")
        .hint("start it with one, as in mpirun -n 4 reshard …, or leave out --mpi");
  return launcher;
}

double seconds_of(const Environment& environment, const char* name, double otherwise) {
  const std::string_view text = value_of(environment, name);
  if (text.empty()) return otherwise;
  double seconds = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  const bool is_number = failure == std::errc() && end == text.data() + text.size();
  if (!is_number || !(seconds > 0) || seconds > kMaxSeconds)
    throw Error(ErrorKind::kUsage,
                fmt::format("{}: \"{}\" is not a positive number of seconds", name, printable(text)));
  return seconds;
}

}  // namespace reshard::cli
