#include "support/torch_files.h"

#include "reshard/base/crc32.h"
#include "reshard/formats/read_container.h"
#include "reshard/formats/torch/torch_plan.h"
#include "reshard/formats/torch/xser.h"
#include "reshard/io/local_storage.h"
#include "support/local_files.h"
#include "support/strided.h"

namespace reshard::test {

namespace fs = std::filesystem;

namespace {

template <typename BytesOf>
void write_plan(const fs::path& path, const ContainerPlan& plan, const BytesOf& bytes_of) {
  std::string content(plan.size_bytes, '\0');
  for (const FilePart& part : plan.parts) content.replace(part.offset_bytes, part.bytes.size(), part.bytes);
  for (const TensorEntry& entry : plan.tensors) content.replace(entry.offset_bytes, entry.size_bytes, bytes_of(entry));
  write_file(path, content);
}

}  // namespace

void write_torch(const fs::path& path, const TensorMap& tensors) {
  std::vector<TensorEntry> entries;
  std::vector<std::uint32_t> crcs;
  for (const auto& [name, tensor] : tensors) {
    entries.push_back({name, tensor.dtype, tensor.shape});
    crcs.push_back(crc32(std::as_bytes(std::span(tensor.bytes))));
  }
  const ContainerPlan plan = plan_torch(path.stem().string(), entries, {}, crcs);
  write_plan(path, plan, [&](const TensorEntry& entry) { return tensors.at(entry.name).bytes; });
}

void write_xser(const fs::path& path, const TensorMap& tensors) {
  fs::remove_all(xser_tensors_folder(path));
  fs::create_directories(xser_tensors_folder(path));
  std::vector<TensorEntry> entries;
  std::vector<std::pair<std::string, std::uint64_t>> numbers;
  for (const auto& [name, tensor] : tensors) {
    const fs::path file = xser_tensor_path(path, entries.size());
    const TensorEntry entry{name, tensor.dtype, tensor.shape};
    const std::uint32_t crc = crc32(std::as_bytes(std::span(tensor.bytes)));
    const std::string& bytes = tensor.bytes;
    write_plan(file, plan_torch_tensor(file.stem().string(), entry, crc), [&](const auto&) { return bytes; });
    numbers.emplace_back(name, entries.size());
    entries.push_back(entry);
  }
  write_file(path, xser_reference_file(path.stem().string(), numbers));
  write_file(xser_info_path(path), xser_info_file(xser_info_path(path).stem().string(), entries));
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
