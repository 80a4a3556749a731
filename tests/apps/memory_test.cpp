// What the program takes of memory, whatever the model.

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/files.h"
#include "support/models.h"
#include "support/program.h"
#include "support/temp_dir.h"

using namespace reshard::test;
namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kMiB = 1 << 20;
/// What the program takes before it moves a byte: itself, its libraries, the headers.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kProgramBytes = 160 * kMiB;
#else
constexpr std::uint64_t kProgramBytes = 24 * kMiB;
#endif

/// A model of 512 MiB in a file of holes: two matrices of 256 MiB and little else.
void write_holes(const fs::path& directory) {
  TinyModel model;
  model.hidden = 4096;
  model.intermediate = 64;
  model.layers = 1;
  model.heads = 32;
  model.kv_heads = 8;
  model.head_dim = 4;
  model.vocab = 32768;
  nlohmann::json header;
  std::uint64_t at = 0;
  for (const TinyParameter& parameter : parameters_of(model)) {
    std::uint64_t bytes = 2;
    for (const std::uint64_t size : parameter.shape) bytes *= size;
    header[parameter.name] = {{"dtype", "BF16"}, {"shape", parameter.shape}, {"data_offsets", {at, at + bytes}}};
    at += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string length;
  for (int shift = 0; shift < 64; shift += 8) length += static_cast<char>(text.size() >> shift);
  fs::create_directories(directory);
  std::ofstream(directory / "config.json") << model.config();
  std::ofstream(directory / "model.safetensors", std::ios::binary) << length << text;
  fs::resize_file(directory / "model.safetensors", 8 + text.size() + at);
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
  write_holes(dir / "model");
  for (const auto& [threads, max_mib] : {std::pair{1, 4}, {16, 4}, {16, 64}, {64, 256}})
    for (const char* io : {"read", "mmap"}) {
      CAPTURE(threads, max_mib, io);
      const std::vector<std::string> options{
          "--threads", std::to_string(threads), "--max-memory", std::to_string(max_mib) + "MiB", "--io", io};
      const auto run = [&](std::vector<std::string> arguments) {
        arguments.insert(arguments.end(), options.begin(), options.end());
        CHECK(peak_bytes(arguments) <= static_cast<std::uint64_t>(max_mib) * kMiB + kProgramBytes);
      };
      run({"shard", (dir / "model").string(), (dir / "shards").string(), "--tp", "32", "--format", "xser", "--force"});
      run({"consolidate", (dir / "shards").string(), (dir / "whole").string(), "--force"});
    }
}
