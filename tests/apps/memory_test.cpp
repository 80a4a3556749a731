// What the program takes of memory, whatever the model.

#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/models.h"
#include "support/program.h"
#include "support/random.h"
#include "support/temp_dir.h"

using namespace reshard::test;

namespace {

constexpr std::uint64_t kMiB = 1 << 20;
/// Beside the buffers: the program and its libraries (a run that is only planned takes 11 MiB, and 16 where the code is
/// not optimised), stacks, what the C library keeps for each thread, headers while they are read.
#ifdef NDEBUG
constexpr std::uint64_t kProgramBytes = 16 * kMiB;
#else
constexpr std::uint64_t kProgramBytes = 20 * kMiB;
#endif

/// A model of 260 MB: matrices of 64 MiB, cut along either dim, and little else.
TinyModel large_model() {
  TinyModel model;
  model.hidden = 4096;
  model.intermediate = 8192;
  model.layers = 1;
  model.heads = 32;
  model.kv_heads = 8;
  model.head_dim = 4;
  model.vocab = 4096;
  return model;
}

}  // namespace

TEST_CASE("The memory that is taken stays in what --max-memory allows") {
  const TempDir dir;
  const std::string model = (dir / "model").string();
  const std::string shards = (dir / "shards").string();
  write_sparse_model(model, large_model());
  const std::vector<std::pair<int, int>> trials{{1, 4}, {16, 64}};
  for (const auto& [threads, mebibytes] : sample_of(trials)) {
    const Arguments options{"--threads", std::to_string(threads), "--max-memory", std::to_string(mebibytes) + "MiB",
                            "--no-sync"};
    const std::uint64_t allowed = mebibytes * kMiB + kProgramBytes;
    const auto check = [&](const Arguments& arguments) {
      INFO(arguments.front() << ", " << options[1] << " threads, allowed " << allowed);
      CHECK(json_of(joined(arguments, options)).at("peak_memory_bytes").get<std::uint64_t>() <= allowed);
    };
    check({"shard", model, shards, "--tp", "32", "--format", "xser", "--force"});
    check({"consolidate", shards, (dir / "whole").string(), "--force"});
    check({"convert", model, (dir / "float").string(), "--dtype", "float32", "--force"});
  }
}
