// The bar and the lines of progress, and when lines are due.
#include "progress.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <thread>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "support/errors.h"
#include "support/files.h"
#include "support/program.h"
#include "support/temp_dir.h"

using namespace reshard;
using namespace reshard::cli;
using namespace reshard::test;

namespace {

constexpr std::uint64_t kGB = 1'000'000'000;

/// A run of 4 GB after `seconds`, at `share`.
ProgressFacts after(double seconds, double share, std::string_view phase = "writing") {
  return {phase, static_cast<std::uint64_t>(share * 4e9), 0, 4 * kGB, seconds};
}

/// The standard error of a ProgressBar in a process of its own that raises SIGUSR1 during its run.
std::string said_at_signal(ProgressStyle style, bool quiet) {
  const TempDir dir;
  const std::string path = (dir / "err").string();
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(::open(path.c_str(), O_WRONLY | O_CREAT, 0600), STDERR_FILENO);
    mind_stop_signals();
    ::raise(SIGUSR1);
    Progress progress;
    progress.done_bytes = 1000;
    {
      const ProgressBar bar(progress, 4000, "writing", style, quiet);
      ::raise(SIGUSR1);
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
    }
    ::raise(SIGUSR1);
    ::_exit(progress.stop ? 1 : 0);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  return read_file(path);
}

}  // namespace

TEST_CASE("the progress bar fits every terminal") {
  for (const int columns : {1, 10, 20, 40, 60, 80, 100, 200})
    for (const char* phase : {"writing", "flushing"})
      CHECK(progress_bar({phase, 123456789, 0, 4970000000, 1.5}, columns).size() <
            static_cast<std::size_t>(std::max(columns, 1)));
}

TEST_CASE("the progress bar says bytes, rate and time left") {
  const std::string line = progress_bar({"writing", kGB, 0, 4 * kGB, 2.0}, 100);
  for (const char* part : {" 25%", "1.00 GB of 4.00 GB", "500 MB/s", "0:06 left", "[======="})
    CHECK_THAT(line, Says(part));
  CHECK_THAT(progress_bar({"writing", 0, 0, 100, 0.0}, 80), !Says("left"));
  CHECK_THAT(progress_bar({"flushing", 100, 0, 100, 1.0}, 80), Says("flushing to disk"));
}

TEST_CASE("A line of progress has phase, share, bytes, rate and time left, in text and in JSON") {
  const ProgressFacts facts{"writing", kGB, 0, 4 * kGB, 2.0};
  CHECK(progress_text(facts) == "reshard: writing: 25%, 1.00 GB of 4.00 GB, 500 MB/s, 0:06 left");
  CHECK(progress_json(facts) ==
        R"({"event":"progress","phase":"writing","done_bytes":1000000000,"resumed_bytes":0,"total_bytes":4000000000,)"
        R"("seconds":2.0,"bytes_per_second":500000000.0,"seconds_left":6.0})");
  CHECK_THAT(progress_json({"flushing", 4 * kGB, 0, 4 * kGB, 2.0}), Says(R"("seconds_left":null)"));
}

TEST_CASE("Bytes that an earlier run wrote count as done, and neither for the rate nor for the time left") {
  const ProgressFacts facts{"writing", kGB, 2 * kGB, 4 * kGB, 2.0};
  CHECK(facts.rate() == 5e8);
  CHECK(facts.seconds_left() == 2);
  CHECK(progress_text(facts) ==
        "reshard: writing: 75%, 3.00 GB of 4.00 GB, 500 MB/s, 0:02 left (2.00 GB by an earlier run)");
  CHECK(ProgressFacts{"writing", 0, 2 * kGB, 4 * kGB, 2.0}.seconds_left() < 0);
}

TEST_CASE("A line is due after 10 s if 5 % more are done, else after a minute, and with a new phase") {
  ProgressPace pace;
  CHECK_FALSE(pace.is_due(after(0, 0)));
  CHECK_FALSE(pace.is_due(after(9.9, 0.9)));
  CHECK(pace.is_due(after(10, 0.1)));
  CHECK_FALSE(pace.is_due(after(20.1, 0.14)));
  CHECK(pace.is_due(after(21, 0.151)));
  CHECK_FALSE(pace.is_due(after(80, 0.152)));
  CHECK(pace.is_due(after(81, 0.152)));
  CHECK(pace.is_due(after(82, 0.2, "flushing")));
  CHECK_FALSE(pace.is_due(after(83, 0.2, "flushing")));
  ProgressPace of_short_run;
  CHECK_FALSE(of_short_run.is_due(after(1, 1, "flushing")));
}

TEST_CASE("SIGUSR1 prints a line of progress before, during and after a run, also with --quiet, and stops nothing") {
  const std::string planning = "reshard: planning: no bytes are done yet\n";
  const std::string finishing = "reshard: finishing: all bytes are done\n";
  for (const auto& [style, quiet] : {std::pair(ProgressStyle::kAuto, false),
                                     {ProgressStyle::kAuto, true},
                                     {ProgressStyle::kLines, false},
                                     {ProgressStyle::kNone, false}}) {
    const std::string said = said_at_signal(style, quiet);
    INFO(said);
    CHECK(said.starts_with(planning + "reshard: writing: 25%, 1.00 kB of 4.00 kB, "));
    CHECK(said.ends_with(" left\n" + finishing));
  }
  const std::string said = said_at_signal(ProgressStyle::kJson, false);
  const std::vector<std::string> lines = split(said, '\n');
  INFO(said);
  REQUIRE(lines.size() == 6);  // the beginning, the signal, the end
  for (const std::size_t i : {1, 2, 3}) CHECK(nlohmann::json::parse(lines[i])["done_bytes"] == 1000);
}

TEST_CASE("A short run prints two lines with --progress json, at its beginning and its end, and none otherwise") {
  const TempDir dir;
  const std::string model = testdata("golden/optimum/llama-tp8-gqa/original").string();
  int runs = 0;
  const auto errors_of = [&](const Arguments& more) {
    return run_well(joined({"convert", model, (dir / std::to_string(++runs)).string()}, more)).err;
  };
  for (const Arguments& more : {Arguments{}, {"--progress", "auto"}, {"--progress", "lines"}, {"--progress", "none"}})
    CHECK(errors_of(more).empty());
  const std::vector<std::string> lines = split(errors_of({"--progress", "json", "--quiet"}), '\n');
  REQUIRE(lines.size() == 3);
  CHECK(nlohmann::json::parse(lines[0])["done_bytes"] == 0);
  const auto last = nlohmann::json::parse(lines[1]);
  CHECK(last["phase"] == "publishing");
  CHECK(last["done_bytes"] == last["total_bytes"]);
  check_fails({"verify", model, model, "--progress", "dots"}, 2,
              {"--progress: \"dots\" is not one of auto, lines, json, none"});
}
