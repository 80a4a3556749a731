// Reads a tensor of a torch file: the call that rebuilds it, its storage, and its offset.

#include "reshard/formats/torch/torch_tensor.h"

#include <algorithm>

#include "reshard/base/checked.h"
#include "reshard/base/strings.h"
#include "reshard/formats/pickle/pickle_contents.h"
#include "reshard/formats/torch/torch_file.h"
#include "reshard/formats/torch/torch_storage.h"

namespace reshard {
namespace {

constexpr std::string_view kUtils = "torch._utils";
constexpr std::string_view kTensorModule = "torch._tensor";
// Data that is read again for each tensor must be short: a million tensors may share a tuple or dict.
constexpr std::size_t kMaxDims = 64;
constexpr std::uint64_t kMaxRepeats = 1 << 16;  // of each byte, in an expanded tensor
constexpr std::size_t kMaxMetadata = 16;
constexpr int kMostWrappers = 8;  // a parameter of a subclass on a device has three

constexpr const char* kDense = "save it as a plain, dense tensor: .cpu(), .to_dense() or .dequantize()";

/// A function that rebuilds an unsupported tensor, and the reason.
struct Unsupported {
  std::string_view function;
  const char* what;
  const char* hint = kDense;
};
constexpr Unsupported kUnsupportedKinds[] = {
    {"_rebuild_sparse_tensor", "is sparse"},
    {"_rebuild_sparse_csr_tensor", "is sparse"},
    {"_rebuild_nested_tensor", "is a nested tensor"},
    {"_rebuild_qtensor", "is quantised"},
    {"_rebuild_meta_tensor_no_storage", "has no data (device meta)",
     "it was on the meta device, like parameters that Accelerate has offloaded: its values are not in this file; load "
     "the whole model on one device before saving it, or save it with Accelerate's save_model"},
    {"_rebuild_device_tensor_from_numpy", "was saved from its device as a NumPy array"},
    {"_rebuild_xla_tensor", "was saved from its device as a NumPy array"},
};

constexpr std::string_view kWrapper = "_rebuild_wrapper_subclass";
/// Attributes of wrappers that are computed from the tensor inside: torchao keeps the scale for its next step.
constexpr std::string_view kComputedAttributes[] = {"_precomputed_scale"};

/// A call to one of torch's rebuild functions, without the calls around it.
struct Rebuild {
  PickleGlobal function;
  std::span<const PickleRef> args;
  std::string_view declared_dtype;  // declared by a call around it, or empty
  PickleRef type = kNoNode;         // a subclass of Tensor
  PickleRef attributes = kNoNode;   // its
};

class TensorReader {
 public:
  TensorReader(const TorchFile& file, const std::string& name) : file_(file), pickle_(file.pickle()), name_(name) {}

  /// \param depth  number of tensors that contain this one.
  TorchTensor read(PickleRef node, int depth = 0) const;

 private:
  Error bad(std::string message) const {
    return Error(ErrorKind::kBadInput, std::move(message)).in(file_.path()).tensor(name_);
  }
  Error unsupported(std::string message) const {
    return Error(ErrorKind::kUnsupported, std::move(message)).in(file_.path()).tensor(name_);
  }

  Rebuild unwrap(PickleRef node) const;
  PickleRef inside(PickleRef attributes) const;
  TorchTensor read_inside(const Rebuild& wrapper, int depth) const;
  DType dtype_of(std::string_view torch_name) const;
  std::string_view dtype_name(PickleRef node) const;
  Dims dims(PickleRef node, const char* what) const;
  std::uint64_t number(PickleRef node, const char* what) const;
  void refuse_lazy_bits(PickleRef metadata) const;
  std::uint32_t find_storage(const TorchStorageId& id) const;
  void place(TorchTensor& tensor, std::uint64_t offset_elems, const TorchStorageId& id) const;

  const TorchFile& file_;
  const Pickle& pickle_;
  const std::string& name_;
};

Rebuild TensorReader::unwrap(PickleRef node) const {
  PickleRef callee = pickle_.callee(node);
  PickleRef args = pickle_.args(node);
  std::string_view declared_dtype;
  PickleRef type = kNoNode, attributes = kNoNode;
  for (int wrappers = 0; wrappers < kMostWrappers; ++wrappers) {
    const PickleGlobal function = pickle_.global(callee);
    const auto fields = pickle_.items(args);
    const bool from_cpu = function.name == "_rebuild_device_tensor_from_cpu_tensor";
    if (function.module == kTensorModule && function.name == "_rebuild_from_type_v2") {
      if (fields.size() != 4 || pickle_.kind(fields[0]) != PickleKind::kGlobal ||
          pickle_.kind(fields[2]) != PickleKind::kTuple)
        throw bad("is rebuilt from its type with other arguments than torch uses");
      callee = fields[0];
      args = fields[2];
      type = fields[1];
      attributes = fields[3];
      continue;
    }
    if (function.module != kUtils) break;
    if (!from_cpu && function.name != "_rebuild_parameter" && function.name != "_rebuild_parameter_with_state")
      return {function, fields, declared_dtype, type, attributes};
    if (fields.size() < 2 || !file_.is_tensor(fields[0])) throw bad("wraps an object that is not a tensor");
    if (from_cpu) declared_dtype = dtype_name(fields[1]);
    callee = pickle_.callee(fields[0]);
    args = pickle_.args(fields[0]);
  }
  throw unsupported("is rebuilt by " + printable(pickle_.class_name(callee)) + ", which is not supported");
}

/// Returns the only tensor among the attributes of a subclass of Tensor; kNoNode if others may contain tensors, too, or if
/// one is a number that the tensor may have to be multiplied by.
PickleRef TensorReader::inside(PickleRef attributes) const {
  if (attributes == kNoNode) return kNoNode;
  PickleRef found = kNoNode;
  std::vector<PickleRef> dicts{attributes};  // or a pair of dicts, for classes with slots
  if (pickle_.kind(attributes) == PickleKind::kTuple && pickle_.items(attributes).size() == 2)
    dicts.assign(pickle_.items(attributes).begin(), pickle_.items(attributes).end());
  for (const PickleRef dict : dicts) {
    const auto pairs = pickle_.pairs(dict);
    if (pairs.size() > kMaxMetadata) return kNoNode;
    for (const auto& [key, value] : pairs) {
      if (std::ranges::count(kComputedAttributes, pickle_.text(key)) > 0) continue;
      const PickleKind kind = pickle_.kind(value);
      const bool is_number = kind == PickleKind::kFloat || kind == PickleKind::kInt;
      if (is_number && pickle_.text(key).find("scale") != std::string_view::npos) return kNoNode;
      if (!may_contain_storage(pickle_, value)) continue;
      if (found != kNoNode || !file_.is_tensor(value)) return kNoNode;
      found = value;
    }
  }
  return found;
}

/// Reads a subclass of Tensor that wraps the weight itself, as torchao's do for training in float8: the tensor inside
/// has the dtype and shape of the wrapper.
TorchTensor TensorReader::read_inside(const Rebuild& wrapper, int depth) const {
  const auto args = wrapper.args;
  const std::string type = wrapper.type == kNoNode ? "Tensor" : pickle_.class_name(wrapper.type);
  const bool is_distributed = type.starts_with("torch.distributed.");
  const PickleRef found =
      is_distributed || args.size() < 3 || depth > kMostWrappers ? kNoNode : inside(wrapper.attributes);
  if (found == kNoNode && is_distributed)
    throw unsupported("is a " + printable(type) + ", a part of a tensor on several ranks")
        .hint(
            "for an FSDP rank file, give the directory that contains the files of all ranks; otherwise save it as a "
            "plain tensor: .full_tensor()");
  if (found == kNoNode) throw unsupported("is an object of " + printable(type) + ", a subclass of Tensor").hint(kDense);
  TorchTensor tensor = read(found, depth + 1);
  const std::string_view dtype = dtype_name(args[1]);
  const Dims shape = dims(args[2], "size");
  if (describe(tensor.dtype).torch_name == dtype && tensor.shape == shape) return tensor;
  throw unsupported("is an object of " + printable(type) + ", which makes " + printable(dtype) + " " +
                    to_string(shape) + " of a tensor of " + std::string(describe(tensor.dtype).torch_name) + " " +
                    to_string(tensor.shape))
      .hint(kDense);
}

DType TensorReader::dtype_of(std::string_view torch_name) const {
  if (const auto dtype = dtype_from_torch_name(torch_name)) return *dtype;
  throw unsupported("has the dtype " + printable(torch_name) + ", which reshard does not read from torch files")
      .hint("save the state dict with safetensors, convert the tensor to another dtype, or leave it out");
}

std::string_view TensorReader::dtype_name(PickleRef node) const {
  const PickleGlobal dtype = pickle_.global(node);
  if (dtype.module != "torch") throw bad("has " + pickle_.describe(node) + " instead of a dtype");
  return dtype.name;
}

std::uint64_t TensorReader::number(PickleRef node, const char* what) const {
  if (pickle_.kind(node) != PickleKind::kInt) throw bad(std::string("its ") + what + " is " + pickle_.describe(node));
  if (pickle_.integer(node) < 0) throw bad(std::string("its ") + what + " is " + std::to_string(pickle_.integer(node)));
  return static_cast<std::uint64_t>(pickle_.integer(node));
}

/// Reads a tuple or a torch.Size.
Dims TensorReader::dims(PickleRef node, const char* what) const {
  if (pickle_.is_object_of(node, "torch", "Size") && pickle_.items(pickle_.args(node)).size() == 1)
    node = pickle_.items(pickle_.args(node))[0];
  if (pickle_.kind(node) != PickleKind::kTuple && pickle_.kind(node) != PickleKind::kList)
    throw bad(std::string("its ") + what + "s are " + pickle_.describe(node));
  const auto items = pickle_.items(node);
  if (items.size() > kMaxDims) throw bad("has " + std::to_string(items.size()) + " dims, more than torch allows");
  Dims dims;
  for (const PickleRef item : items) dims.push_back(number(item, what));
  return dims;
}

/// Rejects a tensor that is saved as the conjugate or negative of the bytes in its storage.
void TensorReader::refuse_lazy_bits(PickleRef metadata) const {
  const auto pairs = pickle_.pairs(metadata);
  if (pairs.size() > kMaxMetadata) throw bad("has more metadata than torch writes");
  for (const auto& [key, value] : pairs)
    if ((pickle_.text(key) == "conj" || pickle_.text(key) == "neg") && pickle_.integer(value) != 0)
      throw unsupported("is saved as the " + std::string(pickle_.text(key) == "conj" ? "conjugate" : "negative") +
                        " of its storage")
          .hint("call resolve_conj() and resolve_neg() on it before it is saved");
}

std::uint32_t TensorReader::find_storage(const TorchStorageId& id) const {
  const auto storages = file_.storages();
  const auto found =
      std::lower_bound(storages.begin(), storages.end(), id.key,
                       [](const TorchStorage& storage, const std::string& key) { return storage.key < key; });
  if (found == storages.end() || found->key != id.key)
    throw bad("its storage, " + printable(id.key) + ", is not in the file");
  if (found->size_bytes != id.size_bytes)
    throw bad("its storage, " + printable(id.key) + ", should have " + std::to_string(id.size_bytes) +
              " bytes, but has " + std::to_string(found->size_bytes));
  return static_cast<std::uint32_t>(found - storages.begin());
}

bool is_c_order(const Dims& shape, const Dims& strides) {
  std::uint64_t expected = 1;
  for (std::size_t dim = shape.size(); dim-- > 0;) {
    if (shape[dim] != 1 && strides[dim] != expected) return false;
    expected *= shape[dim];
  }
  return true;
}

/// Validates that every element is inside the storage, and sets the tensor's offset.
void TensorReader::place(TorchTensor& tensor, std::uint64_t offset_elems, const TorchStorageId& id) const {
  const TorchStorage& storage = file_.storages()[tensor.storage];
  tensor.offset_bytes = storage.offset_bytes;
  const auto total_bytes = num_bytes(tensor.dtype, tensor.shape);
  tensor.size_bytes = total_bytes.value_or(0);
  if (!total_bytes)
    throw bad("the shape " + to_string(tensor.shape) + " of " + std::string(name(tensor.dtype)) + " overflows 64 bits");
  if (*total_bytes == 0) {  // strides and offset have no meaning
    tensor.strides.clear();
    return;
  }
  const std::uint64_t elem_bytes = bits(tensor.dtype) / 8;
  std::optional<std::uint64_t> last = offset_elems;
  for (std::size_t dim = 0; last && dim < tensor.shape.size(); ++dim) {
    const auto span = checked_mul(tensor.shape[dim] - 1, tensor.strides[dim]);
    last = span ? checked_add(*last, *span) : std::nullopt;
  }
  if (!last || *last >= id.view_size_bytes / elem_bytes)
    throw bad("the shape " + to_string(tensor.shape) + " with strides " + to_string(tensor.strides) + " from element " +
              std::to_string(offset_elems) + " exceeds its storage of " +
              std::to_string(id.view_size_bytes / elem_bytes) + " elements");
  // An expanded tensor repeats its elements; excessive repetition is not a tensor of a model.
  if (*total_bytes / kMaxRepeats > id.view_size_bytes)
    throw unsupported("repeats the " + std::to_string(id.view_size_bytes) + " bytes of its storage to " +
                      std::to_string(*total_bytes));
  tensor.offset_bytes += id.view_begin_bytes + offset_elems * elem_bytes;
  if (is_c_order(tensor.shape, tensor.strides)) tensor.strides.clear();
}

TorchTensor TensorReader::read(PickleRef node, int depth) const {
  const Rebuild rebuild = unwrap(node);
  const std::string_view function = rebuild.function.name;
  if (function == kWrapper) return read_inside(rebuild, depth);
  for (const Unsupported& kind : kUnsupportedKinds)
    if (function == kind.function) throw unsupported(kind.what).hint(kind.hint);
  const bool v3 = function == "_rebuild_tensor_v3";
  if (!v3 && function != "_rebuild_tensor_v2" && function != "_rebuild_tensor")
    throw unsupported("is rebuilt by torch._utils." + printable(function) + ", which is not supported");
  const std::size_t needed = v3 ? 7 : 4;
  const std::size_t metadata = v3 ? 7 : 6;
  const auto args = rebuild.args;
  if (args.size() < needed)
    throw bad(printable(function) + " needs " + std::to_string(needed) + " arguments, but has " +
              std::to_string(args.size()));
  if (pickle_.kind(args[0]) != PickleKind::kPersistentId)
    throw bad("has " + pickle_.describe(args[0]) + " instead of a storage");
  const auto id = read_storage_id(pickle_, args[0], file_.path(), name_);
  if (!id) throw bad("has the source of a module instead of a storage");

  TorchTensor tensor;
  tensor.name = name_;
  tensor.dtype = dtype_of(v3 ? dtype_name(args[6]) : id->element->torch_name);
  tensor.shape = dims(args[2], "size");
  tensor.strides = dims(args[3], "stride");
  if (!rebuild.declared_dtype.empty() && rebuild.declared_dtype != describe(tensor.dtype).torch_name)
    throw unsupported("is saved as " + std::string(describe(tensor.dtype).torch_name) + ", to become " +
                      printable(rebuild.declared_dtype) + " when it is loaded");
  if (tensor.shape.size() != tensor.strides.size())
    throw bad("has " + std::to_string(tensor.shape.size()) + " dims, but " + std::to_string(tensor.strides.size()) +
              " strides");
  if (args.size() > metadata) refuse_lazy_bits(args[metadata]);
  tensor.storage = find_storage(*id);
  place(tensor, number(args[1], "offset"), *id);
  return tensor;
}

}  // namespace

bool TorchFile::is_tensor(PickleRef node) const {
  if (pickle_.kind(node) != PickleKind::kObject) return false;
  const PickleGlobal callee = pickle_.global(pickle_.callee(node));
  return (callee.module == kUtils || callee.module == kTensorModule) && callee.name.starts_with("_rebuild_");
}

TorchTensor TorchFile::tensor(PickleRef node, const std::string& name) const {
  if (!is_tensor(node))
    throw Error(ErrorKind::kBadInput, "is " + pickle_.describe(node) + ", not a tensor").in(path_).tensor(name);
  return TensorReader(*this, name).read(node);
}

}  // namespace reshard
