// --tag and --config as a user gives them.

#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/errors.h"
#include "support/files.h"
#include "support/program.h"
#include "support/temp_dir.h"

using namespace reshard::test;
namespace fs = std::filesystem;

namespace {

const fs::path kCase = testdata("golden/zero1/nxd-llama-dp2-tp2");
const std::string kOriginal = (kCase / "original").string();
const std::string kConfig = (kCase / "original/config.json").string();

/// A run with the finished step_3 and step_10, and step_20 that was cut off.
struct Run {
  TempDir dir;
  std::string path = (dir / "run").string();

  Run() {
    fs::create_directories(dir / "run");
    for (const char* step : {"step_3", "step_10", "step_20"})
      fs::copy(kCase / "checkpoint/step_3", dir / "run" / step, fs::copy_options::recursive);
    fs::remove(dir / "run/step_20/done");
  }
  std::string out() const { return (dir / "out").string(); }
};

}  // namespace

TEST_CASE("Each command takes the newest finished checkpoint of a run and says which") {
  const Run run;
  const std::vector<std::vector<std::string>> commands{{"consolidate", run.path, run.out()},
                                                       {"inspect", run.path},
                                                       {"convert", run.path, (run.dir / "converted").string()},
                                                       {"verify", run.path, kOriginal},
                                                       {"verify", kOriginal, run.path}};
  for (std::vector<std::string> command : commands) {
    command.insert(command.end(), {"--config", kConfig});
    const ProgramResult result = run_reshard(command);
    INFO(command[0] << ": " << result.err);
    CHECK(result.exit_code == 0);
    CHECK_THAT(result.err,
               Says("note: " + run.path + ": step_10 is taken, the newest of 2 finished checkpoints in it"));
    CHECK_THAT(result.err, Says("step_20 is newer, but not finished: it has no file \"done\""));
  }
  for (const char* made : {"out", "converted"}) {
    CHECK(read_tensors(run.dir / made / "model.safetensors") ==
          read_tensors(fs::path(kOriginal) / "model.safetensors"));
    CHECK(read_file(run.dir / made / "config.json") == read_file(kConfig));
  }
}

TEST_CASE("The option --tag takes the checkpoint of that name, finished or not") {
  const Run run;
  const std::vector<std::vector<std::string>> commands{{"consolidate", run.path, run.out()},
                                                       {"inspect", run.path},
                                                       {"convert", run.path, (run.dir / "converted").string()},
                                                       {"verify", run.path, kOriginal}};
  for (std::vector<std::string> command : commands) {
    command.insert(command.end(), {"--config", kConfig, "--tag", "step_20", "--json"});
    const ProgramResult result = run_reshard(command);
    INFO(command[0] << ": " << result.err);
    REQUIRE(result.exit_code == 0);
    const auto json = nlohmann::json::parse(result.out);
    CHECK_THAT(json["notes"][0].get<std::string>(), Says(run.path + "/step_20 has no file \"done\""));
    if (command[0] == "inspect") CHECK(json["path"] == run.path + "/step_20");
    command[command.size() - 2] = "step_4";
    check_failed(run_reshard(command), 3, {"holds no folder step_4", "step_3, step_10, step_20"});
  }
}

TEST_CASE("A --tag or --config that makes no sense, or would do nothing, is an error") {
  const Run run;
  for (const char* tag : {"", "..", "../run", "step_3/", "/"})
    check_failed(run_reshard({"inspect", run.path, "--tag", tag}), 2,
                 {"--tag", *tag ? "is not the name of a folder" : "the value is empty"});
  check_failed(run_reshard({"inspect", kConfig, "--tag", "step_3"}), 2, {"is not a directory", "--tag"});
  check_failed(run_reshard({"inspect", run.path, "--config", ""}), 2, {"--config: the value is empty"});
  check_failed(run_reshard({"inspect", run.path, "--config", run.path}), 3, {"holds no config.json"});
  check_failed(run_reshard({"verify", kOriginal, kOriginal, "--tag", "step_3"}), 2, {"--tag has no effect"});
  check_failed(run_reshard({"verify", kOriginal, kOriginal, "--config", kConfig}), 2, {"--config has no effect"});
  const std::string adapter = testdata("golden/lora").string();
  const std::string sharded = (fs::directory_iterator(adapter)->path() / "sharded").string();
  check_failed(run_reshard({"consolidate", sharded, run.out(), "--config", kConfig}), 2, {"--config has no effect"});
  CHECK_FALSE(fs::exists(run.out()));
}

TEST_CASE("A run without a finished checkpoint is an error that lists what is there, and --tag takes one") {
  const Run run;
  for (const char* step : {"step_3", "step_10"}) fs::remove(run.dir / "run" / step / "done");
  check_failed(run_reshard({"consolidate", run.path, run.out()}), 3,
               {"holds no finished checkpoint", "step_3 (it has no file \"done\")", "step_20", "--tag"});
  CHECK(run_reshard({"inspect", run.path, "--tag", "step_3", "--config", kConfig}).exit_code == 0);
}

TEST_CASE("A run whose checkpoints are empty folders is an error that lists them") {
  const TempDir dir;
  for (const char* step : {"step_3", "step_4"}) fs::create_directories(dir / "run" / step);
  const std::string run = (dir / "run").string();
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"inspect", run}, {"consolidate", run, (dir / "out").string()}})
    check_failed(run_reshard(command), 3, {"step_3 (it holds no weights), step_4 (it holds no weights)"});
}

TEST_CASE("A directory of unrelated models is an error that asks for --tag") {
  const TempDir dir;
  const fs::path from = testdata("golden/zero1/optimum-llama-dp1-tp4-m2-fused");
  fs::create_directories(dir / "models");
  fs::copy(from / "checkpoint", dir / "models/llama-optimum", fs::copy_options::recursive);
  fs::copy(from / "original", dir / "models/mistral", fs::copy_options::recursive);
  const std::string models = (dir / "models").string();
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"inspect", models}, {"consolidate", models, (dir / "out").string()}})
    check_failed(run_reshard(command), 2, {"llama-optimum", "--tag"});
  CHECK_FALSE(fs::exists(dir / "out"));
  for (const char* model : {"llama-optimum", "mistral"})
    CHECK(run_reshard({"inspect", models, "--tag", model}).exit_code == 0);
}

TEST_CASE("The adapters of a run's newest checkpoint are consolidated") {
  const TempDir dir;
  fs::path golden_case;
  for (const auto& entry : fs::directory_iterator(testdata("golden/lora")))
    if (golden_case.empty() || entry.path() < golden_case) golden_case = entry.path();
  fs::create_directories(dir / "run");
  for (const char* name : {"checkpoint-9", "checkpoint-10"})
    fs::copy(golden_case / "sharded", dir / "run" / name, fs::copy_options::recursive);
  const ProgramResult result = run_reshard({"consolidate", (dir / "run").string(), (dir / "out").string()});
  INFO(result.err);
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.err, Says("checkpoint-10 is taken"));
  REQUIRE(run_reshard({"consolidate", (golden_case / "sharded").string(), (dir / "direct").string()}).exit_code == 0);
  CHECK((snapshot(dir / "out") == snapshot(dir / "direct")));
}
