// What the program takes of memory, whatever the model.

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "support/models.h"
#include "support/program.h"
#include "support/random.h"
#include "support/temp_dir.h"

using namespace reshard::test;

namespace {

constexpr std::uint64_t kMiB = 1 << 20;
/// What is taken beside the buffers, where the code is not optimised: the program and its libraries, stacks, headers.
constexpr std::uint64_t kProgramBytes = 32 * kMiB;

/// A model whose tensors are a few KB, and with the same commands takes what the program takes by itself.
TinyModel small_model() {
  TinyModel model;
  model.hidden = 64;
  model.intermediate = 128;
  model.layers = 1;
  model.heads = model.kv_heads = 32;
  model.head_dim = 4;
  model.vocab = 64;
  return model;
}

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
  write_sparse_model(dir / "small", small_model());
  write_sparse_model(dir / "large", large_model());
  const std::vector<std::pair<int, int>> trials{{1, 4}, {16, 64}};
  for (const auto& [threads, of_buffers] : sample_of(trials)) {
    const std::uint64_t mebibytes = of_buffers;
    const Arguments options{"--threads", std::to_string(threads), "--max-memory", std::to_string(mebibytes) + "MiB",
                            "--no-sync"};
    const auto peak = [&](const Arguments& arguments) {
      return json_of(joined(arguments, options)).at("peak_memory_bytes").get<std::uint64_t>();
    };
    const auto check = [&](const std::function<Arguments(const std::string& model, const std::string& shards)>& run) {
      const Arguments small = run((dir / "small").string(), (dir / "small-shards").string());
      INFO(small.front() << ", " << options[1] << " threads, " << options[3]);
      const std::uint64_t by_itself = peak(small);
      CHECK(by_itself <= kProgramBytes);
      CHECK(peak(run((dir / "large").string(), (dir / "shards").string())) <= by_itself + mebibytes * kMiB);
    };
    const std::string out = (dir / "out").string();
    check([](const std::string& model, const std::string& shards) {
      return Arguments{"shard", model, shards, "--tp", "32", "--format", "xser", "--force"};
    });
    check([&](const std::string&, const std::string& shards) {
      return Arguments{"consolidate", shards, out, "--force"};
    });
    check([&](const std::string& model, const std::string&) {
      return Arguments{"convert", model, out, "--dtype", "float32", "--force"};
    });
  }
}
