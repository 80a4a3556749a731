#include "reshard/formats/torch/xser.h"

#include <algorithm>

#include "reshard/base/strings.h"
#include "reshard/formats/common/open_weights.h"
#include "reshard/formats/torch/state_dict.h"
#include "reshard/formats/torch/torch_file.h"
#include "reshard/formats/torch/xser_tensors.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTensorPrefix = "tensor_";
constexpr std::string_view kTensorSuffix = ".pt";

/// Appends `suffix` to the file name: "a.pt" → "a.pt.tensors".
fs::path beside(const fs::path& path, std::string_view suffix) {
  fs::path result = path;
  result += suffix;
  return result;
}

/// Whether to read all tensor files, those of a rank that shares tensors with another, or only their descriptions.
enum class Reading : std::uint8_t { kFiles, kOwnFiles, kDescriptions };

Container read_container_of(Files& files, const fs::path& path, Reading reading) {
  const FileStamp stamp = files.stamp(path);
  const TorchFile file = read_torch_file(*open_weights(files, path), path);
  const Pickle& pickle = file.pickle();
  StateDict state_dict =
      find_state_dict(file, [&](PickleRef node) { return is_xser_reference(pickle, node) || file.is_tensor(node); });
  Container container;
  container.path = path;
  container.metadata = file.metadata();
  container.warnings = std::move(state_dict.warnings);
  for (auto& entry : state_dict.descriptions) container.metadata.push_back(std::move(entry));
  XserTensors tensors(files, file, {path, file.size_bytes(), stamp});
  for (const auto& [name, node] : state_dict.values) {
    if (!is_xser_reference(pickle, node)) {  // what was not on the device is in the reference file itself
      container.tensors.push_back(file.tensor(node, name));
      continue;
    }
    if (reading == Reading::kOwnFiles && tensors.is_elsewhere(node, name)) continue;
    container.tensors.push_back(reading == Reading::kDescriptions ? tensors.described(node, name)
                                                                  : tensors.read(node, name));
    if (tensors.is_expert_parallel(node, name)) container.metadata.emplace_back(kXserExpertParallel, name);
  }
  tensors.warn(container.warnings);
  container.files = tensors.files();
  for (const ContainerFile& one : container.files) container.size_bytes += one.size_bytes;
  return container;
}

}  // namespace

fs::path xser_tensors_folder(const fs::path& path) {
  return beside(path, kXserTensorsSuffix);
}

fs::path xser_tensor_path(const fs::path& path, std::uint64_t tid) {
  fs::path name(kTensorPrefix);
  name += std::to_string(tid);
  name += kTensorSuffix;
  return xser_tensors_folder(path) / name;
}

fs::path xser_info_path(const fs::path& path) {
  return beside(path, kXserInfoSuffix);
}

bool is_xser_tensor_name(std::string_view name) {
  return name.starts_with(kTensorPrefix) && name.ends_with(kTensorSuffix);
}

bool is_xser(Files& files, const fs::path& path) {
  return files.is_directory(xser_tensors_folder(path));
}

Container read_xser(Files& files, const fs::path& path) {
  return read_container_of(files, path, Reading::kFiles);
}

Container read_own_xser(Files& files, const fs::path& path) {
  return read_container_of(files, path, Reading::kOwnFiles);
}

Container describe_xser(Files& files, const fs::path& path) {
  return read_container_of(files, path, Reading::kDescriptions);
}

}  // namespace reshard
