// --tag and --config as a user gives them.

#include <filesystem>
#include <nlohmann/json.hpp>

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
  std::vector<Arguments> commands() const {
    return {{"consolidate", path, out()},
            {"inspect", path},
            {"convert", path, (dir / "converted").string()},
            {"verify", path, kOriginal},
            {"verify", kOriginal, path}};
  }
};

}  // namespace

TEST_CASE("Each command takes the newest finished checkpoint of a run and says which") {
  const Run run;
  for (const Arguments& command : run.commands()) {
    check_run(joined(command, {"--config", kConfig}), 0, {},
              {"note: " + run.path + ": using step_10, the newest of 2 complete checkpoints",
               "step_20 is newer, but incomplete: it has no file \"done\""});
  }
  for (const char* made : {"out", "converted"}) {
    CHECK(read_tensors(run.dir / made / "model.safetensors") ==
          read_tensors(fs::path(kOriginal) / "model.safetensors"));
    CHECK(read_file(run.dir / made / "config.json") == read_file(kConfig));
  }
}

TEST_CASE("The option --tag takes the checkpoint of that name, finished or not") {
  const Run run;
  for (const Arguments& command : run.commands()) {
    if (command[1] == kOriginal) continue;  // the tag is of the first one
    const auto json = json_of(joined(command, {"--config", kConfig, "--tag", "step_20"}));
    CHECK_THAT(json["notes"][0].get<std::string>(), Says(run.path + "/step_20 has no file \"done\""));
    if (command[0] == "inspect") CHECK(json["path"] == run.path + "/step_20");
    check_fails(joined(command, {"--config", kConfig, "--tag", "step_4"}), 3,
                {"contains no folder step_4", "step_3, step_10, step_20"});
  }
}

TEST_CASE("A --tag or --config that makes no sense, or would do nothing, is an error") {
  const Run run;
  for (const char* tag : {"", "..", "../run", "step_3/", "/"})
    check_fails({"inspect", run.path, "--tag", tag}, 2,
                {"--tag", *tag ? "is not a folder name" : "the value is empty"});
  check_fails({"inspect", kConfig, "--tag", "step_3"}, 2, {"is not a directory", "--tag"});
  check_fails({"inspect", run.path, "--config", ""}, 2, {"--config: the value is empty"});
  check_fails({"inspect", run.path, "--config", run.path}, 3, {"contains no config.json"});
  check_fails({"verify", kOriginal, kOriginal, "--tag", "step_3"}, 2, {"--tag has no effect"});
  const std::string adapter = testdata("golden/lora").string();
  const std::string sharded = (fs::directory_iterator(adapter)->path() / "sharded").string();
  check_fails({"consolidate", sharded, run.out(), "--config", kConfig}, 2, {"--config has no effect"});
  CHECK_FALSE(fs::exists(run.out()));
}

TEST_CASE("verify notes a --config that neither side needs") {
  check_run({"verify", kOriginal, kOriginal, "--config", kConfig}, 0,
            "same: ", "note: --config has no effect: A and B both have their own config.json");
  const TempDir dir;
  run_well({"convert", kOriginal, (dir / "out").string(), "--manifest"});
  const std::string manifest = (dir / "out/reshard.manifest.json").string();
  check_run({"verify", kOriginal, "--manifest", manifest, "--config", kConfig}, 0,
            "same: ", "note: --config has no effect: A has its own config.json");
  fs::remove(dir / "out/config.json");
  CHECK_THAT(run_reshard({"verify", kOriginal, (dir / "out").string(), "--config", kConfig}).err, !Says("no effect"));
}

TEST_CASE("The adapters of a run's newest checkpoint are consolidated") {
  const TempDir dir;
  fs::path golden_case;
  for (const auto& entry : fs::directory_iterator(testdata("golden/lora")))
    if (golden_case.empty() || entry.path() < golden_case) golden_case = entry.path();
  fs::create_directories(dir / "run");
  for (const char* name : {"checkpoint-9", "checkpoint-10"})
    fs::copy(golden_case / "sharded", dir / "run" / name, fs::copy_options::recursive);
  check_run({"consolidate", (dir / "run").string(), (dir / "out").string()}, 0, {}, "using checkpoint-10");
  run_well({"consolidate", (golden_case / "sharded").string(), (dir / "direct").string()});
  CHECK((snapshot(dir / "out") == snapshot(dir / "direct")));
}
