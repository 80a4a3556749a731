// Who started the process, and whether it shares its work: from the environment and the command line alone.
#include "launcher.h"

#include <map>
#include <string>
#include <vector>

#include "support/refusals.h"

using namespace reshard;
using namespace reshard::cli;
using reshard::test::check_refused;

namespace {

using Variables = std::map<std::string, std::string>;

/// Of these variables; they must outlive it.
Environment environment_of(const Variables& variables) {
  return [&variables](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

/// "NAME: RANK of SIZE, FAMILY", or "none".
std::string found(const Variables& variables) {
  const auto launcher = find_launcher(environment_of(variables));
  if (!launcher) return "none";
  return launcher->name + ": " + std::to_string(launcher->rank) + " of " + std::to_string(launcher->size) + ", " +
         (launcher->family.empty() ? "unknown" : launcher->family);
}

MpiUse use_of(std::vector<const char*> arguments, const Variables& variables = {}) {
  arguments.insert(arguments.begin(), "reshard");
  return mpi_use(static_cast<int>(arguments.size()), arguments.data(), environment_of(variables));
}

const Variables kOpenMpi = {{"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_RANK", "3"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"PMIX_RANK", "3"},
                            {"PMIX_NAMESPACE", "prterun-host-17@1"}};
const Variables kHydra = {
    {"PMI_SIZE", "3"}, {"PMI_RANK", "2"}, {"PMI_FD", "9"}, {"MPI_LOCALNRANKS", "3"}, {"MPI_LOCALRANKID", "2"}};
const Variables kSrun = {{"SLURM_STEP_NUM_TASKS", "3"}, {"SLURM_PROCID", "1"}, {"SLURM_LOCALID", "1"},
                         {"SLURM_NTASKS", "3"},         {"SLURM_NPROCS", "3"}, {"SLURM_STEP_ID", "0"}};

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

}  // namespace

TEST_CASE("Help, the version and a built-in description need no ranks, whatever the environment says") {
  using Words = std::vector<const char*>;
  const auto prints = [](Words arguments) {
    arguments.insert(arguments.begin(), "reshard");
    return only_prints(static_cast<int>(arguments.size()), arguments.data());
  };
  for (const Words& words : {Words{"--help"}, Words{"-h"}, Words{"--version"}, Words{"-V"}, Words{"help", "shard"},
                             Words{"shard", "a", "b", "--help"}, Words{"inspect", "--print-family", "llama"},
                             Words{"inspect", "--print-family=llama"}, Words{"version"}, Words{"doctor", "."}})
    CHECK(prints(words));
  for (const Words& words : {Words{"inspect", "a"}, Words{"inspect", "doctor"}, Words{"inspect", "--", "--help"}})
    CHECK_FALSE(prints(words));
  CHECK(rank_or_0(environment_of(kOpenMpi)) == 3);
  CHECK(rank_or_0(environment_of({{"SLURM_STEP_NUM_TASKS", "4"}})) == 0);
  CHECK(rank_or_0(environment_of({})) == 0);
}

TEST_CASE("Each launcher is known by its own variables") {
  CHECK(found(kOpenMpi) == "Open MPI's mpirun: 3 of 4, openmpi");
  CHECK(found(kHydra) == "MPICH's mpirun: 2 of 3, mpich");
  CHECK(found(kSrun) == "srun: 1 of 3, unknown");
  CHECK(found(with(kSrun, {{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "slurm.pmix.7.0"}})) ==
        "srun --mpi=pmix: 1 of 3, openmpi");
  CHECK(found(with(kSrun, {{"PMI_SIZE", "3"}, {"PMI_RANK", "1"}, {"PMI_FD", "11"}, {"PMI_JOBID", "7.0"}})) ==
        "srun --mpi=pmi2: 1 of 3, mpich");
}

TEST_CASE("The shell of a Slurm batch script or allocation is no launcher, though its job has several tasks") {
  CHECK(found({{"SLURM_NTASKS", "3"}, {"SLURM_NPROCS", "3"}, {"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "7"}}) == "none");
  CHECK(found({{"SLURM_NTASKS", "3"}, {"SLURM_NPROCS", "3"}}) == "none");
  CHECK(found({}) == "none");
}

TEST_CASE("An mpirun inside a Slurm job counts for more than the step that started its daemons") {
  CHECK(found(with(kOpenMpi, {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}})) == "Open MPI's mpirun: 3 of 4, openmpi");
  // On two nodes the step has one task per node.
  CHECK(found(with(kOpenMpi, {{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}})) ==
        "Open MPI's mpirun: 3 of 4, openmpi");
  for (const char* nodes : {"1", "2"})
    CHECK(found(with(kHydra, {{"SLURM_STEP_NUM_TASKS", nodes}, {"SLURM_PROCID", "0"}, {"SLURM_NPROCS", nodes}})) ==
          "MPICH's mpirun: 2 of 3, mpich");
}

TEST_CASE("A launcher of one process is none, whatever variables of others are inherited") {
  CHECK(found({{"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}}) == "none");
  CHECK(found(with(kSrun, {{"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}})) == "none");
  CHECK(found(with(kSrun, {{"PMI_SIZE", "1"}, {"PMI_RANK", "0"}})) == "none");
}

TEST_CASE("Flux, PALS and launchers with PMIx are known, if others than this process may have been started") {
  const Variables flux = {{"FLUX_JOB_SIZE", "4"}, {"FLUX_TASK_RANK", "2"}, {"FLUX_JOB_ID", "f7"}};
  const Variables pmix = {{"PMIX_RANK", "2"}, {"PMIX_NAMESPACE", "prterun-host-17@1"}};
  CHECK(found(flux) == "flux run: 2 of 4, unknown");
  CHECK(found(with(flux, pmix)) == "flux run: 2 of 4, openmpi");
  CHECK(found(with(flux, {{"PMI_SIZE", "4"}, {"PMI_RANK", "2"}})) == "flux run: 2 of 4, mpich");
  CHECK(found(with(flux, kHydra)) == "MPICH's mpirun: 2 of 3, mpich");
  CHECK(found({{"FLUX_JOB_SIZE", "1"}, {"FLUX_TASK_RANK", "0"}}) == "none");
  CHECK(found({{"PALS_RANKID", "3"}, {"PALS_APID", "x"}}) == "PALS: 3 of 0, unknown");
  CHECK(found({{"PALS_RANKID", "3"}, {"PMI_SIZE", "4"}, {"PMI_RANK", "3"}}) == "MPICH's mpirun: 3 of 4, mpich");
  CHECK(found(pmix) == "a launcher with PMIx: 2 of 0, openmpi");
  CHECK(found({{"PMIX_RANK", "2"}}) == "none");  // no server of PMIx gives the one without the other
}

TEST_CASE("A launcher's variable that is no such number is an error of usage that names it") {
  const auto refused = [](const Variables& variables, const std::string& what) {
    check_refused([&] { found(variables); }, {.kind = ErrorKind::kUsage, .what = what, .hint = "--mpi no"});
  };
  const std::string rank = "\" is not the number of a process";
  for (const std::string size : {"0", "-4", "+4", "4 ", "four", "4.0", "0x4", "99999999999999999999", "2147483648"})
    refused(with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", size}, {"OMPI_COMM_WORLD_RANK", "0"}}),
            "OMPI_COMM_WORLD_SIZE: \"" + size + "\" is not a number of processes");
  for (const std::string wrong : {"", "4", "-1", "x"})
    refused(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", wrong}}), "OMPI_COMM_WORLD_RANK: \"" + wrong + rank);
  Variables rankless = kHydra;
  rankless.erase("PMI_RANK");
  refused(rankless, "PMI_RANK: \"" + rank);
  refused({{"PALS_RANKID", "x"}}, "PALS_RANKID: \"x" + rank);
  const Variables two = {{"OMPI_COMM_WORLD_SIZE", "two"}};
  CHECK_FALSE(launcher_to_join(MpiUse::kNo, environment_of(two)));
}

TEST_CASE("An empty variable is as good as unset") {
  CHECK(found(with(kSrun, {{"OMPI_COMM_WORLD_SIZE", ""}, {"PMI_SIZE", ""}})) == "srun: 1 of 3, unknown");
  CHECK(use_of({"shard"}, {{"RESHARD_MPI", ""}}) == MpiUse::kAuto);
}

TEST_CASE("The last --mpi counts, in either spelling and before or after the subcommand") {
  CHECK(use_of({"shard", "a", "b"}) == MpiUse::kAuto);
  CHECK(use_of({"shard", "a", "b", "--mpi", "no"}) == MpiUse::kNo);
  CHECK(use_of({"shard", "--mpi=yes", "a", "b"}) == MpiUse::kYes);
  CHECK(use_of({"--mpi=auto", "shard"}) == MpiUse::kAuto);
  CHECK(use_of({"shard", "--mpi", "no", "--mpi=yes"}) == MpiUse::kYes);
  CHECK(use_of({"shard", "--mpi=yes", "--mpi", "no"}) == MpiUse::kNo);
}

TEST_CASE("Only --mpi itself is looked at, and nothing behind --") {
  CHECK(use_of({"shard", "--mpix", "no"}) == MpiUse::kAuto);
  CHECK(use_of({"shard", "-mpi", "no"}) == MpiUse::kAuto);
  CHECK(use_of({"shard", "mpi=no"}) == MpiUse::kAuto);
  CHECK(use_of({"shard", "--", "--mpi", "no"}) == MpiUse::kAuto);
  CHECK(use_of({"shard", "--mpi"}) == MpiUse::kAuto);  // the parser of all options says what is missing
  const std::vector<const char*> program = {"--mpi=no"};
  CHECK(mpi_use(1, program.data(), environment_of({})) == MpiUse::kAuto);
}

TEST_CASE("RESHARD_MPI is the default of --mpi") {
  CHECK(use_of({"shard"}, {{"RESHARD_MPI", "no"}}) == MpiUse::kNo);
  CHECK(use_of({"shard"}, {{"RESHARD_MPI", "yes"}}) == MpiUse::kYes);
  CHECK(use_of({"shard"}, {{"RESHARD_MPI", "auto"}}) == MpiUse::kAuto);
  CHECK(use_of({"shard", "--mpi", "auto"}, {{"RESHARD_MPI", "no"}}) == MpiUse::kAuto);
  CHECK(use_of({"shard", "--mpi", "yes"}, {{"RESHARD_MPI", "nonsense"}}) == MpiUse::kYes);
}

TEST_CASE("Another value of --mpi or RESHARD_MPI is an error of usage that names where it stands") {
  const auto refused = [](const std::vector<const char*>& words, const Variables& variables, const std::string& what) {
    check_refused([&] { use_of(words, variables); },
                  {.kind = ErrorKind::kUsage, .what = what + "\" is not one of auto, yes, no"});
  };
  for (const std::string value : {"maybe", "", "NO", "1"}) {
    refused({"shard", "--mpi", value.c_str()}, {}, "--mpi: \"" + value);
    refused({("--mpi=" + value).c_str(), "shard"}, {}, "--mpi: \"" + value);
  }
  refused({"--mpi=maybe", "--mpi=no"}, {}, "--mpi: \"maybe");
  refused({"shard"}, {{"RESHARD_MPI", "ma\nybe"}}, "RESHARD_MPI: \"ma\\x0aybe");
}

TEST_CASE("A process joins the others that its launcher started, unless --mpi no") {
  const auto joined = [](MpiUse use, const Variables& variables) {
    return launcher_to_join(use, environment_of(variables)).has_value();
  };
  CHECK(joined(MpiUse::kAuto, kSrun));
  CHECK(joined(MpiUse::kYes, kOpenMpi));
  CHECK_FALSE(joined(MpiUse::kNo, kOpenMpi));
  CHECK_FALSE(joined(MpiUse::kAuto, {}));
  CHECK_FALSE(joined(MpiUse::kNo, {}));
  for (const Variables& alone : {Variables{}, Variables{{"PMI_SIZE", "1"}, {"PMI_RANK", "0"}}})
    check_refused([&] { joined(MpiUse::kYes, alone); },
                  {.kind = ErrorKind::kUsage,
                   .what = "--mpi yes, but no launcher of MPI started this process with others",
                   .hint = "mpirun -n 4 reshard"});
}

TEST_CASE("Time limits are positive numbers of seconds") {
  const auto seconds = [](const std::string& value) {
    const Variables variables{{"RESHARD_MPI_TIMEOUT", value}};
    return seconds_of(environment_of(variables), "RESHARD_MPI_TIMEOUT", 600);
  };
  CHECK(seconds_of(environment_of({}), "RESHARD_MPI_TIMEOUT", 600) == 600);
  CHECK(seconds("") == 600);
  CHECK(seconds("2") == 2);
  CHECK(seconds("0.25") == 0.25);
  CHECK(seconds("1e3") == 1000);
  for (const std::string value : {"0", "-1", "nan", "inf", "2s", " 2", "1e10", "1e999", "x"})
    check_refused([&] { seconds(value); },
                  {.kind = ErrorKind::kUsage,
                   .what = "RESHARD_MPI_TIMEOUT: \"" + value + "\" is not a positive number of seconds"});
}
