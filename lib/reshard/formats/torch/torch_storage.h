#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "reshard/formats/pickle/pickle.h"
#include "reshard/tensor/values/dtype.h"

namespace reshard {

/// A typed storage class of torch.
struct TorchElement {
  const char* storage_class;
  const char* torch_name;  // torch.<name>
  std::uint32_t size_bytes;
};

/// A storage, as described by a persistent id.
struct TorchStorageId {
  const TorchElement* element;
  std::string key;
  std::uint64_t size_bytes;
  std::uint64_t view_begin_bytes;  // only legacy streams have views of storages; otherwise the whole storage
  std::uint64_t view_size_bytes;
};

/// Reads the persistent id `node`; std::nullopt if it does not name a storage (in streams it may name a module's source
/// file). `path` and `tensor` are for errors.
/// \throws Error kBadInput for an invalid id; kUnsupported for an unknown storage class.
std::optional<TorchStorageId> read_storage_id(const Pickle& pickle, PickleRef node, const std::filesystem::path& path,
                                              const std::string& tensor);

/// Returns the key of a storage as a string (some streams use ints); std::nullopt if `node` is not a key or is too
/// long.
std::optional<std::string> storage_key(const Pickle& pickle, PickleRef node);

/// Returns torch's typed storage class for `dtype`; nullptr for newer dtypes, which only have untyped storages.
const char* typed_storage_class(DType dtype);

/// Returns the dtype that torch calls `torch_name`, if its elements are whole bytes.
std::optional<DType> dtype_from_torch_name(std::string_view torch_name);

}  // namespace reshard
