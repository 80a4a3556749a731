// Files that torch 2.6 and torch_xla's serialization have written: testdata/golden.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reshard/formats/torch_file.h"
#include "reshard/formats/xser.h"
#include "support/catch.h"
#include "support/files.h"
#include "support/strided.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Names, dtypes, shapes and hashes of the C-ordered bytes, as golden.json has them.
json describe_tensors(const Container& container) {
  std::vector<std::unique_ptr<Source>> files;
  for (const ContainerFile& file : container.files) {
    files.push_back(local_storage().open(file.path));
    CHECK(files.back()->size_bytes() == file.size_bytes);
  }
  json list = json::object();
  for (const TensorEntry& tensor : container.tensors)
    list[tensor.name] = {{"dtype", describe(tensor.dtype).torch_name},
                         {"shape", tensor.shape},
                         {"sha256", sha256_hex(c_order_bytes(tensor, *files.at(tensor.file)))}};
  return list;
}

TEST_CASE("Every file of torch and xser in the golden cases is read as its maker described it") {
  std::size_t torch_files = 0;
  std::size_t xser_files = 0;
  std::size_t strided = 0;
  for (const char* group : {"optimum", "lora", "converter"}) {
    for (const auto& entry : fs::directory_iterator(testdata("golden") / group)) {
      const json golden = json::parse(read_file(entry.path() / "golden.json"));
      const fs::path root = fs::exists(entry.path() / "sharded") ? entry.path() / "sharded" : entry.path();
      for (const auto& [name, tensors] : golden.at("files").items()) {
        INFO(entry.path() << " " << name);
        const bool xser = is_xser(root / name);
        const Container container = xser ? read_xser(root / name) : read_torch(root / name);
        ++(xser ? xser_files : torch_files);
        CHECK(describe_tensors(container) == tensors);
        CHECK(container.warnings.empty());
        CHECK(container.files.size() == (xser ? tensors.size() + 1 : 1));
        for (const TensorEntry& tensor : container.tensors) strided += tensor.strides.empty() ? 0 : 1;
      }
    }
  }
  CHECK(torch_files == 90);
  CHECK(xser_files == 28);
  CHECK(strided == 84);
}

}  // namespace
}  // namespace reshard::test
