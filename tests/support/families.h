#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "support/files.h"

/// A tiny checkpoint of every built-in family, as testdata/families has it: names and shapes written down from the
/// architecture, and how each tensor is split.
namespace reshard::test {

struct FamilyCase {
  std::string name;
  nlohmann::json json;

  std::string model_type() const { return json["config"]["model_type"].get<std::string>(); }
  std::vector<std::uint32_t> degrees() const { return json["tp"].get<std::vector<std::uint32_t>>(); }
};

std::vector<FamilyCase> family_cases();
FamilyCase family_case(const std::string& name);

inline constexpr const char* kExpertFamilies[] = {"mixtral", "qwen2_moe",   "qwen3_moe", "deepseek_v3",
                                                  "dbrx",    "llama4_text", "gpt_oss",   "gpt_oss_mxfp4"};

/// A checkpoint of one of them with six experts a layer, where the file has three.
FamilyCase with_six_experts(const std::string& name);

/// config.json and one file of weights, of random numbers.
TensorMap write_case(const FamilyCase& c, const std::filesystem::path& directory);

struct Slice {
  std::uint64_t begin, end;
};

/// The elements of `parts` along `dim`, one part after the other; those beyond its end are `filler`.
TensorData slices(const TensorData& whole, std::size_t dim, const std::vector<Slice>& parts,
                  const std::string& filler = {});

/// What a tensor-parallel rank has of a tensor that is split along `dim`, or not at all: its share of each of so many
/// matrices of equal size, one after the other.
TensorData rank_slice(const TensorData& whole, std::optional<std::size_t> dim, std::uint64_t tp, std::uint64_t rank,
                      std::uint64_t matrices = 1);

/// What a tensor-parallel rank has of a tensor (an entry of "tensors" in the case's JSON).
TensorData rank_part(const FamilyCase& c, const nlohmann::json& tensor, const TensorData& whole, std::uint64_t tp,
                     std::uint64_t rank);

/// What an expert-parallel rank has of a tensor with six experts, before it is cut over tensor-parallel ranks; nothing
/// if it is another's.
std::optional<TensorData> expert_part(const std::string& name, const TensorData& whole, std::uint64_t ep,
                                      std::uint64_t ep_rank);

}  // namespace reshard::test
