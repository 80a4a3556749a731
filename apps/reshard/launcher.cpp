#include "launcher.h"

#include <fmt/format.h>

#include <charconv>
#include <exception>
#include <string_view>

#include "option_table.h"
#include "reshard/base/error.h"
#include "reshard/base/strings.h"

namespace reshard::cli {
namespace {

constexpr double kMaxSeconds = 1e9;  // 30 years: sums of naps stay exact, and clocks do not overflow

/// Returns an empty string if the variable is unset: `NAME= command` is how a shell unsets one for a command.
std::string_view value_of(const Environment& environment, const char* name) {
  const char* value = environment(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

struct Variables {
  const char* size;  // null if the launcher sets none
  const char* rank;
};
constexpr Variables kOpenMpi = {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"};
constexpr Variables kPmi = {"PMI_SIZE", "PMI_RANK"};
constexpr Variables kFlux = {"FLUX_JOB_SIZE", "FLUX_TASK_RANK"};
constexpr Variables kPals = {nullptr, "PALS_RANKID"};
constexpr Variables kSlurmStep = {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"};  // SLURM_NTASKS is also set in batch scripts
constexpr Variables kPmix = {nullptr, "PMIX_RANK"};

/// \returns std::nullopt for a launcher that started one process.
/// \throws Error kUsage for a variable that is not such a number: if it were ignored, each process would convert
/// everything.
std::optional<Launcher> launcher_of(const Environment& environment, const Variables& variables, const char* name,
                                    const char* family) {
  const auto number = [&](const char* variable, std::uint64_t least, std::uint64_t most, const char* what) {
    const std::string_view text = value_of(environment, variable);
    const auto parsed = parse_unsigned(text, most);
    if (parsed && *parsed >= least) return static_cast<std::uint32_t>(*parsed);
    throw Error(ErrorKind::kUsage, fmt::format("{}: \"{}\" is not {}", variable, printable(text), what))
        .hint(fmt::format("{} sets it; --mpi no makes each process a separate run", name));
  };
  constexpr std::uint64_t kMost = INT32_MAX;
  std::uint32_t size = 0;
  if (variables.size != nullptr) {
    size = number(variables.size, 1, kMost, "a number of processes");
    if (size == 1) return std::nullopt;
  }
  const std::uint32_t rank = number(variables.rank, 0, size > 0 ? size - 1 : kMost, "the number of a process");
  return Launcher{name, rank, size, family};
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
  const bool is_hydra = is_set("MPI_LOCALNRANKS");  // set by MPICH, also inside a Slurm or Flux job
  if (is_set(kOpenMpi.size)) return launcher_of(environment, kOpenMpi, "Open MPI's mpirun", "openmpi");
  if (is_set(kPmi.size)) {
    const char* name = is_hydra                  ? "MPICH's mpirun"
                       : is_set(kFlux.size)      ? "flux run"
                       : is_set(kSlurmStep.size) ? "srun --mpi=pmi2"
                                                 : "MPICH's mpirun";
    return launcher_of(environment, kPmi, name, "mpich");
  }
  const bool has_pmix = is_set(kPmix.rank) && is_set("PMIX_NAMESPACE");
  if (is_set(kFlux.size)) return launcher_of(environment, kFlux, "flux run", has_pmix ? "openmpi" : "");
  if (is_set(kPals.rank)) return launcher_of(environment, kPals, "PALS", "");
  if (is_set(kSlurmStep.size))
    return launcher_of(environment, kSlurmStep, is_set(kPmix.rank) ? "srun --mpi=pmix" : "srun",
                       is_set(kPmix.rank) ? "openmpi" : "");
  if (has_pmix) return launcher_of(environment, kPmix, "a launcher with PMIx", "openmpi");
  return std::nullopt;
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

bool only_prints(int argc, const char* const* argv) {
  for (int i = 1; i < argc && std::string_view(argv[i]) != "--"; ++i) {
    const std::string_view argument = argv[i];
    const CommandRow* command = i == 1 ? command_row(argument) : nullptr;
    if (argument.substr(0, argument.find('=')) == "--help" || argument == "-h" || argument == "--version" ||
        argument == "-V" || (command != nullptr && command->main.empty()) ||
        argument.substr(0, argument.find('=')) == "--print-family")
      return true;
  }
  return false;
}

std::uint32_t rank_or_0(const Environment& environment) noexcept {
  try {
    const auto launcher = find_launcher(environment);
    return launcher ? launcher->rank : 0;
  } catch (const std::exception&) {
    return 0;
  }
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
