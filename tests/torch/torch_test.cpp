// Files that the torch of this machine has just saved (make_files.py), read back.

#include <nlohmann/json.hpp>

#include "reshard/formats/torch/torch_file.h"
#include "reshard/formats/torch/xser.h"
#include "support/containers.h"
#include "support/errors.h"
#include "support/local_files.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const fs::path kFiles = RESHARD_TORCH_FILES;

void check_contents(const fs::path& path, const json& expected) {
  const Container container = expected.at("xser").get<bool>() ? read_xser(path) : read_torch(path);
  CHECK(describe_tensors(tensors_of(container)) == expected.at("tensors"));
  CHECK(container.warnings.size() == expected.at("warnings").size());
  std::string warnings;
  for (const std::string& warning : container.warnings) warnings += warning + "\n";
  for (const auto& part : expected.at("warnings")) CHECK_THAT(warnings, Says(part));
}

TEST_CASE("Every file that torch has saved is read, or refused, as expected") {
  const json expected = json::parse(read_file(kFiles / "expected.json"));
  CHECK(expected.size() >= 37);
  for (const auto& [name, file] : expected.items()) {
    INFO(name);
    if (!file.contains("error")) {
      check_contents(kFiles / name, file);
      continue;
    }
    const Error error = error_of([&, path = kFiles / name] { read_torch(path); });
    CHECK(describe(error.kind()).name == file.at("error").get<std::string>());
    CHECK(error.tensor() == file.at("tensor").get<std::string>());
    CHECK(error.path() == (kFiles / name).string());
    CHECK_THAT(error.what(), Says(file.at("says")));
  }
}

TEST_CASE("What is known of shared storages, views and xser's flags") {
  const TorchFile file = read_torch_file(kFiles / "tied.pt");
  REQUIRE(file.storages().size() == 1);
  CHECK(file.storages()[0].size_bytes == 4 * 6 * 2);
  for (const auto& [key, value] : file.pickle().pairs(file.pickle().root()))
    CHECK(file.tensor(value, "t").storage == 0);
  for (const TensorEntry& tensor : read_torch(kFiles / "views.pt").tensors) {
    INFO(tensor.name);
    if (tensor.name == "expanded") CHECK(tensor.strides == Dims{1, 0});
    for (const char* c_order : {"scalar", "empty", "empty_view", "ones", "whole"})
      if (tensor.name == c_order) CHECK(tensor.strides.empty());
  }
  const Container xser = read_xser(kFiles / "xser/checkpoint");
  REQUIRE(xser.tensors.size() == 4);
  CHECK(xser.tensors[2].file == xser.tensors[0].file);
  CHECK(xser.tensors[3].file == 0);
  CHECK(xser.metadata == std::vector<std::pair<std::string, std::string>>{{kXserExpertParallel, "b"}});
}

}  // namespace
}  // namespace reshard::test
