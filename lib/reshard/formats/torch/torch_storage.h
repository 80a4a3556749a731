#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "reshard/formats/pickle/pickle.h"
#include "reshard/tensor/values/dtype.h"

namespace reshard {

/// A class of torch's typed storages.
struct TorchElement {
  const char* storage_class;
  const char* torch_name;  // torch.<name>
  std::uint32_t size_bytes;
};

/// What a persistent id says about a storage.
struct TorchStorageId {
  const TorchElement* element;
  std::string key;
  std::uint64_t size_bytes;
  std::uint64_t view_begin_bytes;  // only streams of old have views of storages; else the whole storage
  std::uint64_t view_size_bytes;
};

/// Reads the persistent id `node`; nothing if it does not name a storage (streams name source files of modules, too).
/// `path` and `tensor` are for errors.
/// \throws Error kBadInput for an id that makes no sense; kUnsupported for a class of storages that is not known.
std::optional<TorchStorageId> read_storage_id(const Pickle& pickle, PickleRef node, const std::filesystem::path& path,
                                              const std::string& tensor);

/// The key of a storage as a string (some streams have ints); nothing if `node` is none or longer than any key.
std::optional<std::string> storage_key(const Pickle& pickle, PickleRef node);

/// The class of torch's typed storages that holds `dtype`; null where there is none: younger dtypes have only untyped
/// ones.
const char* typed_storage_class(DType dtype);

/// The dtype that torch calls `torch_name`, if it is one whose elements are whole bytes.
std::optional<DType> dtype_from_torch_name(std::string_view torch_name);

}  // namespace reshard
