// The program on a CPU without the instructions that this machine has.

#include <cstdlib>

#include "support/files.h"
#include "support/program.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

TEST_CASE("The oldest CPU of x86-64 writes the same bytes, where there is qemu to be one") {
  if (std::system("command -v qemu-x86_64 >/dev/null") != 0) return;
  const TempDir dir;
  const std::string model = testdata("golden/optimum/llama-tp8-gqa/original").string();
  const auto shard = [&](const char* out, const std::string& setup) {
    const ProgramResult result =
        run_reshard({"shard", model, (dir / out).string(), "--tp", "8", "--dtype", "float16"}, setup);
    INFO(result.err);
    CHECK(result.exit_code == 0);
  };
  shard("native", "");
  shard("emulated", "qemu-x86_64 -cpu qemu64");
  CHECK(snapshot(dir / "native") == snapshot(dir / "emulated"));
}

}  // namespace
}  // namespace reshard::test
