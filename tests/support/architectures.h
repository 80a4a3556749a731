// Tiny checkpoints of the architectures in testdata/architectures.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "reshard/base/error.h"
#include "support/files.h"
#include "support/random.h"
#include "support/temp_dir.h"

namespace reshard::test {

/// What testdata/README.md says of one of these files.
struct Architecture {
  std::string name;
  nlohmann::json facts;
};

/// All of them, sorted.
std::vector<std::string> architecture_names();
Architecture architecture(const std::string& name);
/// 4 where the facts do not say otherwise.
std::uint32_t largest_tp(const Architecture& of);
/// Whether a name is that of an expert or of a module of experts.
bool has_experts(const Architecture& of);

/// Writes config.json and one file of weights, of random numbers.
TensorMap write_architecture(const Architecture& of, const std::filesystem::path& directory);

/// Writes config.json and a model of random numbers with all the tensors that it asks for. \throws Error if it makes no
/// sense.
TensorMap write_configured(const nlohmann::json& config, const std::filesystem::path& directory, Random& random);

struct ShardsOf {
  const char* layout;
  std::uint32_t tp, pp;
};

/// Shards the model; false where the ranks do not divide it, which is said with the degrees that do. All models are
/// made to be divided by 4 ranks, but for those whose facts say `largest_tp`.
bool shard_to(const std::filesystem::path& model, const std::filesystem::path& output, const ShardsOf& target,
              std::uint32_t largest_tp = 4);

/// Shards `tensors`, written as the weights of the model in `temp`, over two stages of two ranks, or for inference, into
/// its folder "out", and consolidates them again.
TensorMap back_from_shards(const TempDir& temp, const TensorMap& tensors, const std::string& layout_name = "ranks");

/// Why `tensors`, written as the weights of the model in `temp`, are no model to shard.
Error refusal_of(const TempDir& temp, const TensorMap& tensors);

}  // namespace reshard::test
