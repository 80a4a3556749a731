// Ranks over a plug-in: what the program makes of it. The plug-ins themselves run in scripts/test-mpi.sh.
#include "mpi_ranks.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "support/files.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

using namespace reshard;
using namespace reshard::cli;
using namespace reshard::test;

namespace {

/// What the other ranks of the plug-ins below give; this process is rank 1.
const std::vector<std::string> kOthers = {"first", "", std::string("a\0b", 3)};

int no_start(ReshardMpiWorld*, char*) {
  return kReshardMpiFailed;
}
int no_finish(char*) {
  return kReshardMpiFailed;
}

int gather_sizes(std::int64_t mine_bytes, std::int64_t* all_bytes, ReshardMpiWait wait, void* context, char*) {
  for (int test = 0; test < 3; ++test)
    if (wait(context) != 0) return kReshardMpiGaveUp;
  for (std::size_t i = 0; i < kOthers.size(); ++i) all_bytes[i] = static_cast<std::int64_t>(kOthers[i].size());
  all_bytes[1] = mine_bytes;
  return kReshardMpiDone;
}

int gather(const char* mine, const std::int64_t* all_bytes, std::int64_t, char* all, ReshardMpiWait, void*, char*) {
  for (std::size_t i = 0; i < kOthers.size(); ++i)
    all = std::copy_n(i == 1 ? mine : kOthers[i].data(), all_bytes[i], all);
  return kReshardMpiDone;
}

/// Another rank never comes.
int wait_in_vain(std::int64_t, std::int64_t*, ReshardMpiWait wait, void* context, char*) {
  while (wait(context) == 0) {
  }
  return kReshardMpiGaveUp;
}

int fail(const char*, const std::int64_t*, std::int64_t, char*, ReshardMpiWait, void*, char* error) {
  std::strcpy(error, "MPI_Iallgatherv: no \x1b route");
  return kReshardMpiFailed;
}

/// Another rank has died in the end.
int finish_in_vain(char*) {
  while (true) ::pause();
}

constexpr ReshardMpi kGood{kReshardMpiAbi, no_start, gather_sizes, gather, no_finish};
constexpr ReshardMpi kSilent{kReshardMpiAbi, no_start, wait_in_vain, gather, no_finish};
constexpr ReshardMpi kFailing{kReshardMpiAbi, no_start, gather_sizes, fail, no_finish};
constexpr ReshardMpi kEndless{kReshardMpiAbi, no_start, gather_sizes, gather, finish_in_vain};
constexpr ReshardMpiWorld kWorld{1, 3, "Some MPI v1, package: of somebody"};

const Launcher kLauncher{"Open MPI's mpirun", 0, 4, "openmpi"};

Environment plugin_at(const std::string& path) {
  return [path](const char* name) { return std::string(name) == "RESHARD_MPI_PLUGIN" ? path.c_str() : nullptr; };
}

}  // namespace

TEST_CASE("Ranks gather what each gave, in order, with empty and binary strings") {
  MpiRanks ranks(&kGood, kWorld, {});
  CHECK(ranks.rank() == 1);
  CHECK(ranks.size() == 3);
  CHECK(ranks.library() == "Some MPI v1");
  for (const std::string& mine : {std::string("mine"), std::string(), std::string(100000, 'x')})
    CHECK(ranks.gather(mine) == std::vector<std::string>{kOthers[0], mine, kOthers[2]});
  CHECK_FALSE(ranks.broken());
}

TEST_CASE("A rank that never comes is given up after the time limit, and the ranks are broken from then on") {
  MpiRanks ranks(&kSilent, kWorld, {60, 0.1});
  const auto began = std::chrono::steady_clock::now();
  check_refused([&] { ranks.gather("x"); },
                {.kind = ErrorKind::kLost,
                 .says = {"waited 0.1 s for the other processes", "outputs get their names by rank 0 alone"},
                 .hint = "RESHARD_MPI_TIMEOUT"});
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - began;
  CHECK(waited.count() >= 0.1);
  CHECK(waited.count() < 5);
  CHECK(ranks.broken());
  CHECK_THROWS_AS(ranks.gather("x"), RankLost);
  CHECK_THAT(error_of([&] { ranks.gather("x"); }).what(), Says("were lost before"));  // MPI is not asked again
}

TEST_CASE("A rank that does not end MPI is not waited for longer than ranks may take to start") {
  const ::pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);  // ends it by a signal, if nothing else does
    MpiRanks(&kEndless, kWorld, {0.1, 600}).finish(7);
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 7);
}

TEST_CASE("A signal to stop does not end a wait that the others answer") {
  MpiRanks ranks(&kGood, kWorld, {});
  const std::atomic<bool> stop{true};
  ranks.mind_stop(&stop);
  CHECK(ranks.gather("mine").size() == 3);
  CHECK_FALSE(ranks.broken());
}

TEST_CASE("An error of MPI breaks the ranks and is told in its own words") {
  MpiRanks ranks(&kFailing, kWorld, {});
  check_refused([&] { ranks.gather("x"); }, {.kind = ErrorKind::kLost, .says = "MPI_Iallgatherv: no \\x1b route"});
  CHECK(ranks.broken());
}

TEST_CASE(
    "Without a plug-in the error says who started how many processes, if that is known, and where it was sought") {
  const TempDir dir;
  const std::string path = (dir / "none.so").string();
  const auto [launcher, says] =
      GENERATE(table<Launcher, std::string>({{kLauncher, "Open MPI's mpirun started 4 processes"},
                                             {{"PALS", 1, 0, ""}, "PALS started this process, perhaps with others"}}));
  check_refused(
      [&, launcher = launcher] { start_mpi(launcher, {}, plugin_at(path)); },
      {.kind = ErrorKind::kUsage,
       .what = says + ", but there is no plug-in for MPI in " + path,
       .hint = {"RESHARD_MPI_PLUGIN names this path: set that of a libreshard_mpi_*.so, or unset it", "--mpi no"}});
}

TEST_CASE("A file that is no plug-in is refused with the loader's reason") {
  const TempDir dir;
  const std::string path = (dir / "text.so").string();
  write_file(path, "no library");
  check_refused([&] { start_mpi(kLauncher, {}, plugin_at(path)); },
                {.kind = ErrorKind::kUsage, .says = "no plug-in for MPI can be loaded: " + path + ": "});
}

TEST_CASE("A static program says that it has no MPI, and who asked for one") {
  check_refused([&] { start_mpi(kLauncher, {}, plugin_at("none.so"), nullptr); },
                {.kind = ErrorKind::kUsage,
                 .what = "Open MPI's mpirun started 4 processes, but this build of reshard is static and has no MPI",
                 .hint = {"-mpi", "--mpi no"}});
}

TEST_CASE("A time limit that is no number is an error that names its variable") {
  for (const std::string name : {"RESHARD_MPI_TIMEOUT", "RESHARD_MPI_START_TIMEOUT"}) {
    const Environment environment = [&](const char* asked) { return name == asked ? "soon" : nullptr; };
    check_refused([&] { mpi_limits(environment); },
                  {.kind = ErrorKind::kUsage, .what = name + ": \"soon\" is not a positive number of seconds"});
  }
  const MpiLimits usual = mpi_limits([](const char*) { return nullptr; });
  CHECK(usual.start_s == 60);
  CHECK(usual.gather_s == 600);
}
