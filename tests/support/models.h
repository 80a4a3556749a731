#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "reshard/engine/execute.h"
#include "support/files.h"
#include "support/random.h"

namespace reshard::test {

/// A small model of a known family. The names and shapes of its parameters are written down here once more, by hand, so
/// that tests do not ask the library what it should have done.
struct TinyModel {
  std::string model_type = "llama";
  std::uint64_t hidden = 16;
  std::uint64_t intermediate = 24;
  std::uint64_t layers = 2;
  std::uint64_t heads = 4;
  std::uint64_t kv_heads = 2;
  std::uint64_t head_dim = 4;
  std::uint64_t vocab = 32;
  bool tied = false;
  bool attention_bias = false;  // llama, granite, qwen3: of q, k, v and o
  bool mlp_bias = false;        // llama, granite
  bool inv_freq = false;        // llama: the rotary buffer that old checkpoints hold

  bool has_qkv_bias() const { return model_type == "qwen2" || attention_bias; }
  nlohmann::json config() const;
};

struct TinyParameter {
  std::string name;
  Dims shape;
};
std::vector<TinyParameter> parameters_of(const TinyModel& model);

/// Every parameter, of one dtype.
TensorMap random_tensors(const TinyModel& model, Random& random, DType dtype = DType::kBF16);

/// config.json and the weights, dealt over `files` files with an index where there are more than one.
void write_model(const std::filesystem::path& directory, const TinyModel& model, const TensorMap& tensors,
                 std::size_t files = 1);

/// The same in memory.
void write_model(MemoryFiles& files, const std::filesystem::path& directory, const TinyModel& model,
                 const TensorMap& tensors, std::size_t count = 1);

/// The same with zeros in a file of holes, which takes no space.
void write_sparse_model(const std::filesystem::path& directory, const TinyModel& model);

/// All tensors of the Hugging Face checkpoint in `directory`, by its index where it has one.
TensorMap read_model(const std::filesystem::path& directory);

/// The tensors of every rank under OUT_DIR: folder name → tensors.
std::map<std::string, TensorMap> read_ranks(const std::filesystem::path& output);

/// As the program does it, but that nothing waits for the disk.
RunOptions unsynced();

/// plan_shard or plan_consolidate, and execute.
RunResult shard(const Request& request, const RunOptions& options = unsynced());
RunResult consolidate(const Request& request, const RunOptions& options = unsynced());

/// The format in which tests shard if they name none: safetensors for layout ranks, since tests read and patch its files;
/// else the default of the layout, if that is written.
std::optional<Format> usual_format(const Layout& layout);

/// A request without the many defaults.
Request shard_request(const std::filesystem::path& model, const std::filesystem::path& output, std::uint32_t tp = 1,
                      std::uint32_t pp = 1);

/// What `execute` does between making the files and publishing them, but with blocks of `block_bytes`; the model's
/// other files are not copied.
void run_in_blocks(const Job& job, const std::filesystem::path& root, std::uint64_t block_bytes, unsigned threads);

/// CHECKs that run_in_blocks makes the same files in `root` as the job has made in its output.
void check_blocks(const Job& job, const std::filesystem::path& root, std::uint64_t block_bytes, unsigned threads);

}  // namespace reshard::test
