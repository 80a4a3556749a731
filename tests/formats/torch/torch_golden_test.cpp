// Files that torch 2.6 and torch_xla's serialization have written: testdata/golden.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reshard/formats/torch/torch_file.h"
#include "reshard/formats/torch/xser.h"
#include "support/catch.h"
#include "support/containers.h"
#include "support/golden.h"
#include "support/local_files.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// All cases whose files are torch's.
std::vector<fs::path> torch_cases() {
  std::vector<fs::path> cases;
  for (const char* group : {"optimum", "lora", "converter"})
    for (const fs::path& golden_case : golden_cases(group)) cases.push_back(golden_case);
  return cases;
}

TEST_CASE("Every file of torch and xser in the golden cases is read as its maker described it") {
  static const std::vector<fs::path> kCases = torch_cases();
  static std::size_t torch_files = 0, xser_files = 0, strided = 0;
  const fs::path golden_case = GENERATE_REF(from_range(kCases));
  const json golden = golden_of(golden_case);
  const fs::path root = fs::exists(golden_case / "sharded") ? golden_case / "sharded" : golden_case;
  for (const auto& [name, tensors] : golden.at("files").items()) {
    INFO(golden_case << " " << name);
    const bool xser = is_xser(root / name);
    const Container container = xser ? read_xser(root / name) : read_torch(root / name);
    ++(xser ? xser_files : torch_files);
    CHECK(describe_tensors(tensors_of(container)) == tensors);
    for (const ContainerFile& file : container.files) CHECK(file.size_bytes == fs::file_size(file.path));
    CHECK(container.warnings.empty());
    CHECK(container.files.size() == (xser ? tensors.size() + 1 : 1));
    for (const TensorEntry& tensor : container.tensors) strided += tensor.strides.empty() ? 0 : 1;
  }
  if (golden_case != kCases.back()) return;
  CHECK(torch_files == 90);
  CHECK(xser_files == 28);
  CHECK(strided == 84);
}

}  // namespace
}  // namespace reshard::test
