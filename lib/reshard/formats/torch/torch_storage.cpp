#include "reshard/formats/torch/torch_storage.h"

#include <string_view>

#include "reshard/base/checked.h"
#include "reshard/base/strings.h"

namespace reshard {
namespace {

// A text of a pickle may be used many times, so texts that are copied for each use must be short.
constexpr std::size_t kMaxKeyBytes = 256;

/// For each element type, the class that is written comes first.
constexpr TorchElement kElements[] = {
    {"DoubleStorage", "float64", 8},
    {"FloatStorage", "float32", 4},
    {"HalfStorage", "float16", 2},
    {"BFloat16Storage", "bfloat16", 2},
    {"LongStorage", "int64", 8},
    {"IntStorage", "int32", 4},
    {"ShortStorage", "int16", 2},
    {"CharStorage", "int8", 1},
    {"ByteStorage", "uint8", 1},
    {"BoolStorage", "bool", 1},
    {"ComplexDoubleStorage", "complex128", 16},
    {"ComplexFloatStorage", "complex64", 8},
    {"QInt8Storage", "qint8", 1},
    {"QInt32Storage", "qint32", 4},
    {"QUInt8Storage", "quint8", 1},
    {"QUInt4x2Storage", "quint4x2", 1},
    {"QUInt2x4Storage", "quint2x4", 1},
    {"UntypedStorage", "uint8", 1},
    {"_UntypedStorage", "uint8", 1},  // torch 1.11 and 1.12
};

class IdReader {
 public:
  IdReader(const Pickle& pickle, const std::filesystem::path& path, const std::string& tensor)
      : pickle_(pickle), path_(path), tensor_(tensor) {}

  std::optional<TorchStorageId> read(PickleRef node) const {
    const auto fields = pickle_.items(pickle_.args(node));
    if (fields.empty() || pickle_.kind(fields[0]) != PickleKind::kString)
      throw bad("is a view of an object that is not described as a storage");
    if (pickle_.text(fields[0]) == "module") return std::nullopt;
    if (pickle_.text(fields[0]) != "storage" || fields.size() < 5)
      throw bad("is a view of an object that is not described as a storage");
    const TorchElement& element = element_of(fields[1]);
    const std::uint64_t size_bytes = bytes(fields[4], element);
    TorchStorageId id{&element, key(fields[2]), size_bytes, 0, size_bytes};
    if (fields.size() > 5 && pickle_.kind(fields[5]) != PickleKind::kNone) take_view(fields[5], id);
    return id;
  }

 private:
  Error bad(std::string message) const {
    return Error(ErrorKind::kBadInput, std::move(message)).in(path_).tensor(tensor_);
  }

  const TorchElement& element_of(PickleRef node) const {
    const PickleGlobal type = pickle_.global(node);
    if (type.module == "torch" || type.module == "torch.cuda" || type.module == "torch.storage")
      for (const TorchElement& element : kElements)
        if (type.name == element.storage_class) return element;
    throw Error(ErrorKind::kUnsupported, "its storage is " + pickle_.describe(node) + ", which is not supported")
        .in(path_)
        .tensor(tensor_);
  }

  std::string key(PickleRef node) const {
    if (auto key = storage_key(pickle_, node)) return *std::move(key);
    throw bad("has " + pickle_.describe(node) + " instead of its storage's key");
  }

  std::uint64_t bytes(PickleRef node, const TorchElement& element) const {
    const std::int64_t elems = pickle_.integer(node);
    const auto size = checked_mul(static_cast<std::uint64_t>(elems), element.size_bytes);
    if (pickle_.kind(node) != PickleKind::kInt || elems < 0 || !size)
      throw bad("its storage has an impossible size or offset");
    return *size;
  }

  void take_view(PickleRef node, TorchStorageId& id) const {
    const auto fields = pickle_.items(node);
    if (fields.size() != 3) throw bad("its storage is a view without a description");
    id.view_begin_bytes = bytes(fields[1], *id.element);
    id.view_size_bytes = bytes(fields[2], *id.element);
    const auto end = checked_add(id.view_begin_bytes, id.view_size_bytes);
    if (!end || *end > id.size_bytes) throw bad("its storage is a view beyond the end of its base");
  }

  const Pickle& pickle_;
  const std::filesystem::path& path_;
  const std::string& tensor_;
};

}  // namespace

std::optional<TorchStorageId> read_storage_id(const Pickle& pickle, PickleRef node, const std::filesystem::path& path,
                                              const std::string& tensor) {
  return IdReader(pickle, path, tensor).read(node);
}

std::optional<std::string> storage_key(const Pickle& pickle, PickleRef node) {
  if (pickle.kind(node) == PickleKind::kInt) return std::to_string(pickle.integer(node));
  if (pickle.kind(node) != PickleKind::kString || pickle.text(node).size() > kMaxKeyBytes) return std::nullopt;
  return std::string(pickle.text(node));
}

const char* typed_storage_class(DType dtype) {
  for (const TorchElement& element : kElements)
    if (std::string_view(element.torch_name) == describe(dtype).torch_name) return element.storage_class;
  return nullptr;
}

std::optional<DType> dtype_from_torch_name(std::string_view torch_name) {
  for (const DTypeRow& row : kDTypes)
    if (!torch_name.empty() && torch_name == row.torch_name && row.bits % 8 == 0) return row.dtype;
  return std::nullopt;
}

}  // namespace reshard
