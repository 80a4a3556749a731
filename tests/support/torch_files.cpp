#include "support/torch_files.h"

#include "reshard/base/crc32.h"
#include "reshard/base/storage.h"
#include "reshard/formats/read_container.h"
#include "reshard/formats/torch_plan.h"
#include "support/strided.h"

namespace reshard::test {

namespace fs = std::filesystem;

void write_torch(const fs::path& path, const TensorMap& tensors) {
  std::vector<TensorEntry> entries;
  std::vector<std::uint32_t> crcs;
  for (const auto& [name, tensor] : tensors) {
    entries.push_back({name, tensor.dtype, tensor.shape});
    crcs.push_back(crc32(std::as_bytes(std::span(tensor.bytes))));
  }
  const ContainerPlan plan = plan_torch(path.stem().string(), entries, {}, crcs);
  std::string content(plan.size_bytes, '\0');
  for (const FilePart& part : plan.parts) content.replace(part.offset_bytes, part.bytes.size(), part.bytes);
  for (const TensorEntry& entry : plan.tensors)
    content.replace(entry.offset_bytes, entry.size_bytes, tensors.at(entry.name).bytes);
  write_file(path, content);
}

TensorMap read_torch_tensors(const fs::path& path) {
  const Container container = read_container(path, format_of_file(path));
  TensorMap tensors;
  for (const TensorEntry& tensor : container.tensors) {
    const auto file = local_storage().open(container.files.at(tensor.file).path);
    tensors[tensor.name] = {tensor.dtype, tensor.shape, c_order_bytes(tensor, *file)};
  }
  return tensors;
}

}  // namespace reshard::test
