// inspect --pickle: the classes and functions that pickles name.

#include <nlohmann/json.hpp>

#include "support/files.h"
#include "support/pickles.h"
#include "support/program.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

/// A pickle with a call that Python would run.
std::string dangerous() {
  return pickles::stream(pickles::call("os", "system", {pickles::text("echo ran")}));
}

}  // namespace

TEST_CASE("inspect --pickle lists the classes of all rank files, and how many objects each has") {
  const std::string ranks = testdata("golden/fsdp_ranks/llama-torch2.14-hsdp");
  const std::string out = run_well({"inspect", "--pickle", ranks}).out;
  CHECK_THAT(out, Says(": 4 files with a pickle, read without running anything\n"));
  CHECK_THAT(out, Says("torch.distributed.tensor._dtensor_spec.ShardOrderEntry       84      4  recorded\n") &&
                      Says("torch.distributed.device_mesh.DeviceMesh                      4      4  known\n") &&
                      Says("torch.bfloat16                                                -      4  named\n"));
  const nlohmann::json one = json_of({"inspect", "--pickle", ranks + "/sharded/model_world_size_4_rank_0.pt"});
  CHECK(one["files"] == 1);
  CHECK(one["names"][0] == nlohmann::json{{"name", "torch.distributed.tensor._dtensor_spec.ShardOrderEntry"},
                                          {"objects", 21},
                                          {"files", 1},
                                          {"kind", "recorded"},
                                          {"with_tensors", false}});
}

TEST_CASE("inspect --pickle lists what it can read, and fails for what would run code") {
  const TempDir dir;
  write_file(dir / "good.pkl", pickles::stream(pickles::object("pkg", "Thing", pickles::number(1))));
  write_file(dir / "a.pkl", dangerous());
  write_file(dir / "b.pkl", dangerous());
  write_safetensors(dir / "model.safetensors", {{"w", floats({1}, {1})}});
  check_run({"inspect", "--pickle", (dir / "").string()}, 3,
            {"1 file with a pickle", "pkg.Thing                1      1  recorded"},
            {"note: also refused: ", "b.pkl", "a.pkl: at byte 28", "calls os.system"});
  check_fails({"inspect", "--pickle", (dir / "a.pkl").string()}, 3, {"calls os.system"});
}

TEST_CASE("inspect --pickle of files without pickles is an error") {
  const TempDir dir;
  write_safetensors(dir / "model.safetensors", {{"w", floats({1}, {1})}});
  check_fails({"inspect", "--pickle", (dir / "").string()}, 3, {"contains no pickle", "safetensors files have none"});
  check_fails({"inspect", "--pickle", (dir / "none").string()}, 3, {"none"});
  check_fails({"inspect", "--pickle"}, 2, {"PATH is missing"});
  check_fails({"inspect", "--pickle", (dir / "").string(), "--stats"}, 2, {"--stats has no effect with --pickle"});
}

}  // namespace reshard::test
