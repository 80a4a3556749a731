#include "support/containers.h"

#include <algorithm>
#include <memory>
#include <span>

#include "reshard/base/crc32.h"
#include "reshard/formats/zip/zip.h"
#include "reshard/io/local_storage.h"
#include "support/catch.h"
#include "support/strided.h"

namespace reshard::test {

namespace fs = std::filesystem;

TensorMap tensors_of(const Container& container) {
  std::vector<std::unique_ptr<Source>> files;
  for (const ContainerFile& file : container.files) files.push_back(local_storage().open(file.path));
  TensorMap tensors;
  for (const TensorEntry& tensor : container.tensors)
    tensors[tensor.name] = {tensor.dtype, tensor.shape, c_order_bytes(tensor, *files.at(tensor.file))};
  return tensors;
}

std::size_t check_crcs(const fs::path& directory) {
  std::size_t entries = 0;
  for (const auto& file : fs::recursive_directory_iterator(directory)) {
    if (!file.is_regular_file()) continue;
    const std::string content = read_file(file.path());
    if (content.substr(0, 4) != "PK\3\4") continue;
    INFO(file.path());
    const ZipDirectory zip = read_zip(*local_storage().open(file.path()), file.path());
    for (const ZipEntry& entry : zip.entries()) {
      INFO(entry.name);
      CHECK(entry.crc32 == crc32(std::as_bytes(std::span(content)).subspan(entry.offset_bytes, entry.size_bytes)));
      ++entries;
    }
  }
  return entries;
}

std::string assemble(const ContainerPlan& plan, const std::vector<std::string>& contents) {
  std::vector<FilePart> all = plan.parts;
  for (std::size_t i = 0; i < contents.size(); ++i)
    if (!contents[i].empty()) all.push_back({plan.tensors[i].offset_bytes, contents[i]});
  std::sort(all.begin(), all.end(),
            [](const FilePart& a, const FilePart& b) { return a.offset_bytes < b.offset_bytes; });
  std::string file;
  for (const FilePart& part : all) {
    CHECK(part.offset_bytes == file.size());
    file += part.bytes;
  }
  CHECK(file.size() == plan.size_bytes);
  return file;
}

}  // namespace reshard::test
