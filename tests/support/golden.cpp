#include "support/golden.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "support/files.h"

namespace reshard::test {

namespace fs = std::filesystem;

std::vector<fs::path> golden_cases(const std::string& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(testdata("golden/" + folder))) found.push_back(entry.path());
  std::sort(found.begin(), found.end());
  return found;
}

nlohmann::json golden_of(const fs::path& golden_case) {
  return nlohmann::json::parse(read_file(golden_case / "golden.json"));
}

fs::path saved_of(const fs::path& golden_case) {
  for (const char* name : {"shards", "step_3"})
    if (fs::is_directory(golden_case / "checkpoint" / name)) return golden_case / "checkpoint" / name;
  return {};
}

std::string rank_of_reference(const std::string& file) {
  const std::string stem = fs::path(file).stem().string();
  return stem.substr(stem.find("tp_rank_"));
}

}  // namespace reshard::test
