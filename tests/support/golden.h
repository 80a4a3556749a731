#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

/// The cases that the reference systems' own code has made: testdata/golden.
namespace reshard::test {

/// The directories of testdata/golden/`folder`, sorted.
std::vector<std::filesystem::path> golden_cases(const std::string& folder);

/// Its golden.json.
nlohmann::json golden_of(const std::filesystem::path& golden_case);

/// The folder of the one checkpoint of a case in testdata/golden/zero1.
std::filesystem::path saved_of(const std::filesystem::path& golden_case);

/// "shards/model/dp_rank_00_tp_rank_01_pp_rank_00.pt" → "tp_rank_01_pp_rank_00"
std::string rank_of_reference(const std::string& file);

}  // namespace reshard::test
