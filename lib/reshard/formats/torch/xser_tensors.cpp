#include "reshard/formats/torch/xser_tensors.h"

#include <algorithm>
#include <optional>

#include "reshard/base/strings.h"
#include "reshard/formats/common/open_weights.h"
#include "reshard/formats/pickle/pickle_values.h"
#include "reshard/formats/torch/state_dict.h"
#include "reshard/formats/torch/xser.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxTid = 100'000'000;  // tensors are numbered from 0; no model has more

constexpr std::size_t kMaxFields = 64;  // a dict may be shared by millions of tensors, and is searched for each

/// Returns the value of the string key `name` in a dict with a few fields, or kNoNode.
PickleRef value_at(const Pickle& pickle, PickleRef dict, std::string_view name) {
  if (dict == kNoNode || pickle.pairs(dict).size() > kMaxFields) return kNoNode;
  for (const auto& [key, value] : pickle.pairs(dict))
    if (pickle.kind(key) == PickleKind::kString && pickle.text(key) == name) return value;
  return kNoNode;
}

}  // namespace

/// Contents of PATH.info.pt.
class XserInfo {
 public:
  /// Empty if the file does not exist: older versions did not write it.
  XserInfo(Files& files, const fs::path& path) {
    if (!files.exists(path)) return;
    file_.emplace(read_torch_file(*open_weights(files, path), path));
    const Pickle& pickle = file_->pickle();
    if (pickle.kind(pickle.root()) != PickleKind::kDict)
      throw Error(ErrorKind::kBadInput, "contains " + pickle.describe(pickle.root()) + ", not a dict").in(path);
    for (const auto& [key, value] : pickle.pairs(pickle.root()))
      if (pickle.kind(key) == PickleKind::kInt) by_tid_.emplace(pickle.integer(key), value);
  }

  /// Returns the declared dtype and shape; std::nullopt if either is missing.
  std::optional<TensorEntry> entry(std::uint64_t tid) const {
    const auto found = by_tid_.find(static_cast<std::int64_t>(tid));
    if (found == by_tid_.end()) return std::nullopt;
    const Pickle& pickle = file_->pickle();
    const PickleRef dtype = value_at(pickle, found->second, "dtype"), shape = value_at(pickle, found->second, "shape");
    if (dtype == kNoNode || shape == kNoNode || pickle.kind(dtype) != PickleKind::kGlobal) return std::nullopt;
    const auto dims = read_size(pickle, shape);
    if (!dims || pickle.global(dtype).module != "torch") return std::nullopt;
    for (const DTypeRow& row : kDTypes)
      if (pickle.global(dtype).name == row.torch_name) return TensorEntry{"", row.dtype, *dims};
    return std::nullopt;
  }

  /// \throws Error kBadInput if the declared dtype or shape differs.
  void compare(std::uint64_t tid, const TensorEntry& tensor, const std::string& name) const {
    const auto found = by_tid_.find(static_cast<std::int64_t>(tid));
    if (found == by_tid_.end()) return;
    const Pickle& pickle = file_->pickle();
    const PickleRef dtype = value_at(pickle, found->second, "dtype");
    const char* held = describe(tensor.dtype).torch_name;
    if (dtype != kNoNode && !pickle.is_global(dtype, "torch", held))
      throw contradiction(name, printable(pickle.class_name(dtype)), std::string("torch.") + held);
    const PickleRef shape = value_at(pickle, found->second, "shape");
    if (shape != kNoNode && !is_shape(shape, tensor.shape))
      throw contradiction(name, "another shape", "the shape " + to_string(tensor.shape));
  }

  bool is_expert_parallel(std::uint64_t tid) const {
    const auto found = by_tid_.find(static_cast<std::int64_t>(tid));
    if (found == by_tid_.end()) return false;
    const PickleRef flag = value_at(file_->pickle(), found->second, "expert_model_parallel");
    return flag != kNoNode && file_->pickle().integer(flag) != 0;
  }

 private:
  Error contradiction(const std::string& name, const std::string& said, const std::string& held) const {
    return Error(ErrorKind::kBadInput, "has " + said + " here, but its file contains " + held)
        .in(file_->path())
        .tensor(name)
        .hint("the files are of two different saves; fetch or save them again");
  }

  bool is_shape(PickleRef node, const Dims& shape) const {
    const Pickle& pickle = file_->pickle();
    if (pickle.kind(node) == PickleKind::kObject && !pickle.items(pickle.args(node)).empty())
      node = pickle.items(pickle.args(node))[0];  // torch.Size of a tuple
    const auto sizes = pickle.items(node);
    return std::equal(sizes.begin(), sizes.end(), shape.begin(), shape.end(), [&](PickleRef size, std::uint64_t held) {
      return pickle.kind(size) == PickleKind::kInt && pickle.integer(size) == static_cast<std::int64_t>(held);
    });
  }

  std::optional<TorchFile> file_;
  std::map<std::int64_t, PickleRef> by_tid_;
};

struct XserTensors::Storage {
  StorageUse use;
};

XserTensors::XserTensors(Files& files, const TorchFile& file, ContainerFile own)
    : files_(files),
      file_(file),
      info_(std::make_unique<XserInfo>(files, xser_info_path(file.path()))),
      storage_(std::make_unique<Storage>()) {
  opened_.push_back(std::move(own));
}

XserTensors::~XserTensors() = default;

std::uint64_t XserTensors::tid_of(PickleRef reference, const std::string& name) const {
  const Pickle& pickle = file_.pickle();
  const PickleRef tid = value_at(pickle, pickle.state(reference), "tid");
  if (tid == kNoNode || pickle.kind(tid) != PickleKind::kInt || pickle.integer(tid) < 0 ||
      static_cast<std::uint64_t>(pickle.integer(tid)) > kMaxTid)
    throw Error(ErrorKind::kBadInput, "refers to a tensor by a value that is not a tensor number")
        .in(file_.path())
        .tensor(name);
  return static_cast<std::uint64_t>(pickle.integer(tid));
}

TensorEntry XserTensors::read(PickleRef reference, const std::string& name) {
  const std::uint64_t tid = tid_of(reference, name);
  auto known = by_tid_.find(tid);
  if (known == by_tid_.end()) known = by_tid_.emplace(tid, open(tid, name)).first;
  info_->compare(tid, known->second, name);
  TensorEntry entry = known->second;
  entry.name = name;
  return entry;
}

TensorEntry XserTensors::described(PickleRef reference, const std::string& name) const {
  auto entry = info_->entry(tid_of(reference, name));
  if (!entry || !num_bytes(entry->dtype, entry->shape))
    throw Error(ErrorKind::kBadInput, "does not record the dtype and shape of a tensor whose file is missing")
        .in(xser_info_path(file_.path()))
        .tensor(name)
        .hint("the copy or download of the folder is incomplete; fetch it again");
  entry->name = name;
  return *entry;
}

bool XserTensors::is_expert_parallel(PickleRef reference, const std::string& name) const {
  return info_->is_expert_parallel(tid_of(reference, name));
}

bool XserTensors::is_elsewhere(PickleRef reference, const std::string& name) const {
  const std::uint64_t tid = tid_of(reference, name);
  return info_->entry(tid) && !info_->is_expert_parallel(tid) && !files_.exists(xser_tensor_path(file_.path(), tid));
}

TensorEntry XserTensors::open(std::uint64_t tid, const std::string& name) {
  const fs::path path = xser_tensor_path(file_.path(), tid);
  if (!files_.exists(path))
    throw Error(ErrorKind::kBadInput, "its file is missing")
        .in(path)
        .tensor(name)
        .hint("the copy or download of the folder is incomplete; fetch it again");
  const FileStamp stamp = files_.stamp(path);
  const TorchFile file = read_torch_file(*open_weights(files_, path), path);
  if (file.metadata() != file_.metadata())
    throw Error(ErrorKind::kBadInput, "its metadata names another rank than that of " +
                                          file_.path().filename().string() + ", which refers to it")
        .in(path)
        .tensor(name)
        .hint("folders of ranks were swapped or mixed: " + xser_tensors_folder(file_.path()).filename().string() +
              " belongs to the file next to it");
  TorchTensor tensor = file.tensor(file.pickle().root(), name);
  storage_->use.add(tensor);
  storage_->use.finish(file);
  opened_.push_back({path, file.size_bytes(), stamp});
  tensor.file = static_cast<std::uint32_t>(opened_.size() - 1);
  return tensor;
}

void XserTensors::warn(std::vector<std::string>& warnings) const {
  storage_->use.warn(warnings);
}

}  // namespace reshard
