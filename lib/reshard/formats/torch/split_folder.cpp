#include "reshard/formats/torch/split_folder.h"

#include <string_view>
#include <unordered_set>

#include "reshard/base/error.h"
#include "reshard/formats/common/open_weights.h"
#include "reshard/formats/safetensors/hf_index.h"
#include "reshard/formats/torch/state_dict.h"
#include "reshard/formats/torch/torch_file.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEmptyEnding = ".empty_json";  // JSON of a dtype and a shape, for tests of random weights

}  // namespace

Container read_split_folder(Files& files, const fs::path& path) {
  Container container;
  container.path = path / kSplitIndexFile;
  const FileStamp stamp = files.stamp(container.path);
  const TensorFiles listed = read_split_index(files, container.path);
  container.files.push_back({container.path, files.size_bytes(container.path), stamp});
  std::unordered_set<std::string_view> seen;
  StorageUse use;
  for (const auto& [name, file_name] : listed) {
    const fs::path file_path = path / file_name;
    if (!seen.insert(file_name).second)
      throw Error(ErrorKind::kBadInput, "the index names the file " + file_name + " for two tensors")
          .in(container.path)
          .tensor(name);
    if (file_name.ends_with(kEmptyEnding))
      throw Error(ErrorKind::kBadInput, "contains only the dtype and shape of the tensor")
          .in(file_path)
          .tensor(name)
          .hint("transformers-neuronx loads random weights from such files: give the directory of a trained model");
    if (!files.exists(file_path))
      throw Error(ErrorKind::kBadInput, "its file is missing")
          .in(file_path)
          .tensor(name)
          .hint("the copy or download of the folder is incomplete; fetch it again");
    const FileStamp file_stamp = files.stamp(file_path);
    const TorchFile file = read_torch_file(*open_weights(files, file_path), file_path);
    if (!file.is_tensor(file.pickle().root()))
      throw Error(ErrorKind::kBadInput, "contains " + file.pickle().describe(file.pickle().root()) + ", not a tensor")
          .in(file_path)
          .tensor(name);
    TorchTensor tensor = file.tensor(file.pickle().root(), name);
    use.add(tensor);
    use.finish(file);
    tensor.file = static_cast<std::uint32_t>(container.files.size());
    container.files.push_back({file_path, file.size_bytes(), file_stamp});
    container.tensors.push_back(std::move(tensor));
  }
  use.warn(container.warnings);
  for (const ContainerFile& file : container.files) container.size_bytes += file.size_bytes;
  return container;
}

}  // namespace reshard
