// What runs do on a kernel, in a container or on a file system that refuses system calls.
#include <sys/syscall.h>

#include <cerrno>
#include <filesystem>

#include "support/catch.h"
#include "support/files.h"
#include "support/program.h"
#include "support/refused_calls.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

const std::string kSplitModel = testdata("golden/optimum/llama-tp2-pp2/original").string();

/// Runs the commands that write and read into `dir`.
void run_all(const TempDir& dir) {
  const std::string shards = (dir / "shards").string(), whole = (dir / "whole").string();
  const std::string forced = (dir / "forced").string(), merged = (dir / "merged").string();
  run_well({"shard", kSplitModel, shards, "--tp", "2", "--pp", "2", "--manifest"});
  run_well({"consolidate", shards, whole});
  run_well({"shard", kSplitModel, forced, "--tp", "4"});
  run_well({"convert", shards, forced, "--tp", "1", "--pp", "1", "--force"});  // as a whole
  run_well({"convert", kSplitModel, merged, "--dtype", "float16"});
  write_file(dir / "merged/notes.txt", "not ours");
  run_well({"convert", kSplitModel, merged, "--dtype", "float32", "--force"});  // file by file
  run_well({"verify", shards, whole});
  run_well({"verify", shards, "--manifest", shards + "/reshard.manifest.json"});
}

TEST_CASE("Where the kernel refuses newer calls, runs do without them and write the same bytes") {
  const TempDir expected;
  run_all(expected);
  const auto files = snapshot(expected.path());
  REQUIRE(files.size() >= 20);
  for (const int number : {ENOSYS, EINVAL, EPERM, EOPNOTSUPP}) {
    INFO("errno " << number);
    const TempDir dir;
    with_refused_calls(number == ENOSYS ? kNewCalls : kFileCalls, number, [&] { run_all(dir); });
    CHECK(snapshot(dir.path()) == files);
  }
  const TempDir dir;
  with_refused_calls({SYS_copy_file_range}, EXDEV, [&] { run_all(dir); });
  CHECK(snapshot(dir.path()) == files);
}

TEST_CASE(
    "Where the kernel refuses locks, --resume says that it has no effect, and outputs are not replaced silently") {
  with_refused_calls(kNewCalls, ENOSYS, [] {
    const TempDir dir;
    const std::string out = (dir / "out").string();
    check_run({"convert", kSplitModel, out, "--resume"}, 0, {}, {"or the kernel, has no locks"});
    check_run({"convert", kSplitModel, out}, 3, {}, {"already exist"});
  });
}

}  // namespace
}  // namespace reshard::test
