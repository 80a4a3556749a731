// What the program takes of memory, whatever the model.

#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/files.h"
#include "support/models.h"
#include "support/program.h"
#include "support/random.h"
#include "support/temp_dir.h"

using namespace reshard::test;
namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kMiB = 1 << 20;
/// Beside the buffers: the program and its libraries (a run that is only planned takes 11 MiB, and 16 where the code is
/// not optimised), stacks, what the C library keeps for each thread, headers while they are read.
#ifdef NDEBUG
constexpr std::uint64_t kProgramBytes = 16 * kMiB;
#else
constexpr std::uint64_t kProgramBytes = 20 * kMiB;
#endif

/// A model of 260 MB in a file of holes: matrices of 64 MiB, cut along either dim, and little else.
void write_holes(const fs::path& directory) {
  TinyModel model;
  model.hidden = 4096;
  model.intermediate = 8192;
  model.layers = 1;
  model.heads = 32;
  model.kv_heads = 8;
  model.head_dim = 4;
  model.vocab = 4096;
  nlohmann::json header;
  std::uint64_t at = 0;
  for (const TinyParameter& parameter : parameters_of(model)) {
    std::uint64_t bytes = 2;
    for (const std::uint64_t size : parameter.shape) bytes *= size;
    header[parameter.name] = {{"dtype", "BF16"}, {"shape", parameter.shape}, {"data_offsets", {at, at + bytes}}};
    at += bytes;
  }
  const fs::path weights = directory / "model.safetensors";
  fs::create_directories(directory);
  write_file(directory / "config.json", model.config().dump());
  write_file(weights, safetensors_bytes(header.dump(), {}));
  fs::resize_file(weights, fs::file_size(weights) + at);
}

std::uint64_t peak_bytes(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"--json", "--no-sync"});
  const ProgramResult result = run_reshard(arguments);
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  return nlohmann::json::parse(result.out).at("peak_memory_bytes").get<std::uint64_t>();
}

}  // namespace

TEST_CASE("The memory that is taken stays in what --max-memory allows") {
  const TempDir dir;
  const std::string model = (dir / "model").string();
  const std::string shards = (dir / "shards").string();
  write_holes(model);
  struct Trial {
    int threads;
    int mebibytes;
  };
  const std::vector<Trial> trials{{1, 4}, {16, 64}};
  for (const Trial& trial : sample_of(trials)) {
    const std::vector<std::string> options{"--threads", std::to_string(trial.threads), "--max-memory",
                                           std::to_string(trial.mebibytes) + "MiB"};
    const std::uint64_t allowed = trial.mebibytes * kMiB + kProgramBytes;
    const auto check = [&](std::vector<std::string> arguments) {
      INFO(arguments.front() << ", " << trial.threads << " threads, allowed " << allowed);
      arguments.insert(arguments.end(), options.begin(), options.end());
      CHECK(peak_bytes(arguments) <= allowed);
    };
    check({"shard", model, shards, "--tp", "32", "--format", "xser", "--force"});
    check({"consolidate", shards, (dir / "whole").string(), "--force"});
    check({"convert", model, (dir / "float").string(), "--dtype", "float32", "--force"});
  }
}
