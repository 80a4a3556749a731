#include "reshard/formats/xser.h"

#include <algorithm>
#include <map>
#include <optional>

#include "reshard/base/strings.h"
#include "reshard/formats/state_dict.h"
#include "reshard/formats/torch_file.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxTid = 100'000'000;  // tensors are numbered from 0; more than any model has

constexpr std::size_t kMaxFields = 64;  // one dict may stand for millions of tensors, and is searched for each

constexpr std::string_view kTensorPrefix = "tensor_";
constexpr std::string_view kTensorSuffix = ".pt";

/// `suffix` after the whole name: "a.pt" → "a.pt.tensors".
fs::path beside(const fs::path& path, std::string_view suffix) {
  fs::path result = path;
  result += suffix;
  return result;
}

/// The value of the string key `name` in a dict of a few fields, or kNoNode.
PickleRef value_at(const Pickle& pickle, PickleRef dict, std::string_view name) {
  if (dict == kNoNode || pickle.pairs(dict).size() > kMaxFields) return kNoNode;
  for (const auto& [key, value] : pickle.pairs(dict))
    if (pickle.kind(key) == PickleKind::kString && pickle.text(key) == name) return value;
  return kNoNode;
}

std::uint64_t tid_of(const TorchFile& file, PickleRef reference, const std::string& name) {
  const Pickle& pickle = file.pickle();
  const PickleRef tid = value_at(pickle, pickle.state(reference), "tid");
  if (tid == kNoNode || pickle.kind(tid) != PickleKind::kInt || pickle.integer(tid) < 0 ||
      static_cast<std::uint64_t>(pickle.integer(tid)) > kMaxTid)
    throw Error(ErrorKind::kBadInput, "refers to a tensor by something that is no tensor's number")
        .in(file.path())
        .tensor(name);
  return static_cast<std::uint64_t>(pickle.integer(tid));
}

/// What PATH.info.pt says of each tensor.
class Info {
 public:
  /// Nothing is known where the file is not there: older versions did not write it.
  Info(Files& files, const fs::path& path) {
    if (!files.exists(path)) return;
    file_.emplace(read_torch_file(*files.open(path), path));
    const Pickle& pickle = file_->pickle();
    if (pickle.kind(pickle.root()) != PickleKind::kDict)
      throw Error(ErrorKind::kBadInput, "holds " + pickle.describe(pickle.root()) + ", not a dict").in(path);
    for (const auto& [key, value] : pickle.pairs(pickle.root()))
      if (pickle.kind(key) == PickleKind::kInt) by_tid_.emplace(pickle.integer(key), value);
  }

  /// \throws Error kBadInput if it says something else of this tensor.
  void compare(std::uint64_t tid, const TorchTensor& tensor, const std::string& name) const {
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
    return Error(ErrorKind::kBadInput, "is of " + said + " here, but its file holds " + held)
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

class XserReader {
 public:
  XserReader(Files& files, const fs::path& path)
      : files_(files),
        path_(path),
        stamp_(files.stamp(path)),
        file_(read_torch_file(*files.open(path), path)),
        info_(files, xser_info_path(path)) {}

  Container read() {
    const Pickle& pickle = file_.pickle();
    StateDict state_dict = find_state_dict(
        file_, [&](PickleRef node) { return is_xser_reference(pickle, node) || file_.is_tensor(node); });
    container_.path = path_;
    container_.metadata = file_.metadata();
    container_.warnings = std::move(state_dict.warnings);
    add_file(path_, file_.size_bytes(), stamp_);
    for (const auto& [name, node] : state_dict.values) {
      if (is_xser_reference(pickle, node)) {
        add_referenced(name, tid_of(file_, node, name));
      } else {  // what was not on the device is in the reference file itself
        const TorchTensor tensor = file_.tensor(node, name);
        add_tensor(name, tensor, 0);
      }
    }
    use_.warn(container_.warnings);
    return std::move(container_);
  }

 private:
  struct Referenced {
    TorchTensor tensor;
    std::uint32_t file;
  };

  void add_file(const fs::path& path, std::uint64_t size_bytes, const FileStamp& stamp) {
    container_.files.push_back({path, size_bytes, stamp});
    container_.size_bytes += size_bytes;
  }

  void add_tensor(const std::string& name, const TorchTensor& tensor, std::uint32_t file) {
    container_.tensors.push_back({name, tensor.dtype, tensor.shape, tensor.offset_bytes,
                                  *num_bytes(tensor.dtype, tensor.shape), file, tensor.strides});
  }

  void add_referenced(const std::string& name, std::uint64_t tid) {
    auto known = by_tid_.find(tid);
    if (known == by_tid_.end()) known = by_tid_.emplace(tid, open(name, tid)).first;
    info_.compare(tid, known->second.tensor, name);
    if (info_.is_expert_parallel(tid)) container_.metadata.emplace_back(kXserExpertParallel, name);
    add_tensor(name, known->second.tensor, known->second.file);
  }

  Referenced open(const std::string& name, std::uint64_t tid) {
    const fs::path path = xser_tensor_path(path_, tid);
    if (!files_.exists(path))
      throw Error(ErrorKind::kBadInput, "its file is missing")
          .in(path)
          .tensor(name)
          .hint("the folder was not copied or fetched whole; fetch it again");
    const FileStamp stamp = files_.stamp(path);
    const TorchFile file = read_torch_file(*files_.open(path), path);
    if (file.metadata() != file_.metadata())
      throw Error(ErrorKind::kBadInput,
                  "its metadata names another rank than that of " + path_.filename().string() + ", which refers to it")
          .in(path)
          .tensor(name)
          .hint("folders of ranks were swapped or mixed: " + xser_tensors_folder(path_).filename().string() +
                " belongs to the file beside it");
    const TorchTensor tensor = file.tensor(file.pickle().root(), name);
    use_.add(tensor);
    use_.finish(file);
    add_file(path, file.size_bytes(), stamp);
    return {tensor, static_cast<std::uint32_t>(container_.files.size() - 1)};
  }

  Files& files_;
  const fs::path& path_;
  FileStamp stamp_;
  TorchFile file_;
  Info info_;
  Container container_;
  std::map<std::uint64_t, Referenced> by_tid_;
  StorageUse use_;
};

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
  return XserReader(files, path).read();
}

}  // namespace reshard
