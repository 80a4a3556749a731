// inspect --pickle: the classes and functions that pickles name.

#include <nlohmann/json.hpp>

#include "support/files.h"
#include "support/pickles.h"
#include "support/program.h"
#include "support/temp_dir.h"
#include "support/zips.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

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
            {"note: also refused: ", "b.pkl", "a.pkl: at byte 2", "names os.system"});
  check_fails({"inspect", "--pickle", (dir / "a.pkl").string()}, 3, {"names os.system"});
}

TEST_CASE("inspect --pickle finds pickles anywhere, and says what it has not examined") {
  const TempDir dir;
  const std::string unmarked = "cos\nsystem\n(S'echo ran'\ntR.";  // protocol 0
  const std::string last =
      zip_bytes({{"a/version", "3"}, {"a/data/0", std::string(2048, 'x')}, {"a/data.pkl", dangerous()}});
  for (const std::string& content : {unmarked, last}) {
    write_file(dir / "sub/deep/hidden.bin", content);
    write_file(dir / "README.md", "cats and dogs\n");
    check_fails({"inspect", "--pickle", (dir / "").string()}, 3, {"hidden.bin: at byte ", "names os.system"});
  }
  fs::remove_all(dir / "sub");
  write_file(dir / "good.pkl", pickles::stream(pickles::global("subprocess", "Popen")));
  write_file(dir / "weights.npy", std::string("\x93NUMPY\1\0", 8));
  check_run({"inspect", "--pickle", (dir / "").string()}, 0, {"subprocess.Popen         -      1  code\n"},
            {"note: not examined, being neither pickles nor safetensors, or without metadata: weights.npy"});
}

TEST_CASE("inspect --pickle lists the pickles of all items, and prints what it refuses as JSON, too") {
  const TempDir dir;
  fs::copy(testdata("golden/dcp/llama-fsdp2-optim/sharded"), dir / "dcp", fs::copy_options::recursive);
  write_file(dir / "bad.pkl", dangerous());
  const nlohmann::json json = json_of({"inspect", "--pickle", (dir / "").string()}, 3);
  REQUIRE(json["refused"].size() == 1);
  CHECK_THAT(json["refused"][0].get<std::string>(), Says("names os.system"));
  const auto objects = [&](const std::string& name) {
    for (const auto& row : json["names"])
      if (row["name"] == name) return std::pair(row["objects"].get<int>(), row["files"].get<int>());
    return std::pair(0, 0);
  };
  CHECK(objects("torch.distributed.checkpoint.metadata.Metadata") == std::pair(1, 1));
  CHECK(objects("torch._utils._rebuild_tensor_v2") == std::pair(147, 2));  // one for each chunk
}

TEST_CASE("inspect --pickle of files without pickles is an error") {
  const TempDir dir;
  write_safetensors(dir / "model.safetensors", {{"w", floats({1}, {1})}});
  check_fails({"inspect", "--pickle", (dir / "").string()}, 3,
              {"contains no file of torch.save and no pickle", "safetensors files have none"});
  check_fails({"inspect", "--pickle", (dir / "none").string()}, 3, {"none"});
  check_fails({"inspect", "--pickle"}, 2, {"PATH is missing"});
  check_fails({"inspect", "--pickle", (dir / "").string(), "--stats"}, 2, {"--stats has no effect with --pickle"});
}

}  // namespace reshard::test
