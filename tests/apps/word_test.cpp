// Processes that were started together and cannot ask each other: one of them says what is wrong.
#include "word.h"

#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "support/program.h"

using namespace reshard;
using namespace reshard::cli;
using namespace reshard::test;

namespace {

std::string key_of_test(const char* what) {
  return what + std::to_string(::getpid());
}

/// Variables of MPICH's mpirun, and a plug-in that does not exist.
std::string rank_of(const char* rank, int size) {
  return "RESHARD_MPI_PLUGIN=/nowhere/x.so PMI_SIZE=" + std::to_string(size) + " PMI_RANK=" + rank;
}

/// Runs `words` by a shell for each of `ranks`; they must print one error, which begins as said.
void check_one_error(const std::string& ranks, const std::string& setup, const std::string& begin) {
  const std::string script =
      "for rank in " + ranks + "; do " + setup + " " RESHARD_PROGRAM " inspect model & done; wait";
  const ProgramResult result = run_reshard({"-c", script}, {}, "/bin/sh");
  CHECK_THAT(result.err, Catch::Matchers::StartsWith("reshard: " + begin));
  CHECK(result.err.find("reshard: ", 1) == std::string::npos);
}

constexpr const char* kNoPlugin =
    "MPICH's mpirun started 4 processes, but there is no plug-in for MPI in /nowhere/x.so";

}  // namespace

TEST_CASE("One process at a time has the word of a run, and it is free again after its end") {
  const std::string key = key_of_test("one");
  Word other_run(key_of_test("other"));
  CHECK(other_run.take());
  {
    Word first(key);
    Word second(key);
    CHECK_FALSE(second.is_taken());
    CHECK(first.take());
    CHECK(first.take());
    CHECK(second.is_taken());
    CHECK_FALSE(second.take());
    CHECK_FALSE(first.is_taken());  // by another
  }
  Word third(key);
  CHECK_FALSE(third.is_taken());
  CHECK(third.take());
}

TEST_CASE("A rank of a launcher has nothing to say where rank 0 has spoken, and else the word") {
  const std::string key = key_of_test("rank");
  const Launcher rank_1{"srun", 1, 4, ""};
  {
    Word spoken(key);
    REQUIRE(spoken.take());
    Word mine(key);
    CHECK_FALSE(takes_word(mine, rank_1));
    CHECK_FALSE(takes_word(mine, Launcher{"srun", 0, 4, ""}));
  }
  Word mine(key);
  CHECK(takes_word(mine, rank_1));
}

TEST_CASE("The processes of a run have one key: their step's, or their parent") {
  const auto key_of = [](const std::string& set) {
    return word_key([set](const char* name) { return set == name ? "7" : nullptr; });
  };
  CHECK(key_of("PMIX_NAMESPACE") == "7-");
  CHECK(key_of("SLURM_STEP_ID") == "7-");
  CHECK(key_of("HOME") == std::to_string(::getppid()));
}

TEST_CASE("A rank other than 0 that cannot start alone says why") {
  const ProgramResult result = run_reshard({"inspect", "model"}, rank_of("1", 4));
  check_failed(result, 2, kNoPlugin);
  CHECK_THAT(result.err, Catch::Matchers::StartsWith("reshard: rank 1 on "));
}

TEST_CASE("Of ranks that cannot start, all for one reason, rank 0 says it alone") {
  check_one_error("3 2 1 0", rank_of("$rank", 4), kNoPlugin);
}

TEST_CASE("Processes whose launcher's variables are no numbers write nothing, and one of them says so") {
  check_one_error("1 0", "OMPI_COMM_WORLD_SIZE=two OMPI_COMM_WORLD_RANK=$rank",
                  "OMPI_COMM_WORLD_SIZE: \"two\" is not a number of processes");
}
