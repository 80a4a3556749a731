#include "reshard/formats/torch/torch_plan.h"

#include <unordered_map>

#include "reshard/base/error.h"
#include "reshard/formats/common/tensor_names.h"
#include "reshard/formats/pickle/pickler.h"
#include "reshard/formats/torch/torch_storage.h"
#include "reshard/formats/zip/zip_plan.h"

namespace reshard {
namespace {

/// Writes a tensor whose bytes are the whole of storage `key`.
void put_tensor(Pickler& pickler, const TensorEntry& tensor, std::size_t key) {
  const char* const typed = typed_storage_class(tensor.dtype);
  const std::uint64_t elems = num_elems(tensor.shape).value_or(0);
  pickler.global("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
  pickler.op('(');
  pickler.op('(');
  pickler.string("storage");
  if (typed)
    pickler.global("torch", typed);
  else
    pickler.global("torch.storage", "UntypedStorage");
  pickler.string(std::to_string(key));
  pickler.string("cpu");
  pickler.integer(typed ? elems : tensor.size_bytes);
  pickler.op('t');
  pickler.op('Q');  // the persistent id of the tuple
  pickler.integer(0);
  pickler.tuple(tensor.shape);
  pickler.tuple(c_strides(tensor.shape));
  pickler.op('\x89');  // requires_grad: false
  pickler.global("collections", "OrderedDict");
  pickler.op(')');
  pickler.op('R');  // no hooks
  if (!typed) pickler.global("torch", describe(tensor.dtype).torch_name);
  pickler.op('t');
  pickler.op('R');
}

void validate_storable(TensorEntry& tensor) {
  const auto size = num_bytes(tensor.dtype, tensor.shape);
  if (bits(tensor.dtype) % 8 != 0)
    throw Error(ErrorKind::kUnsupported, "has elements of less than a byte (" + std::string(name(tensor.dtype)) +
                                             "), which reshard does not write to torch files")
        .tensor(tensor.name)
        .hint("write safetensors");
  if (!size) throw Error(ErrorKind::kInternal, "a tensor to write is not a whole number of bytes").tensor(tensor.name);
  tensor.size_bytes = *size;
}

ContainerPlan plan_file(const std::string& archive, std::vector<TensorEntry> tensors, const std::string& pickle,
                        std::span<const std::uint32_t> crcs, const FileMetadata& metadata) {
  ZipPlan zip;
  zip.add(archive + "/data.pkl", pickle);
  zip.add(archive + "/byteorder", "little");
  for (std::size_t i = 0; i < tensors.size(); ++i)
    tensors[i].offset_bytes =
        zip.add(archive + "/data/" + std::to_string(i), tensors[i].size_bytes, crcs.empty() ? 0 : crcs[i]);
  zip.add(archive + "/version", "3\n");
  if (!metadata.empty()) zip.add(archive + "/" + kArchiveMetadataEntry, archive_metadata_text(metadata));
  ContainerPlan plan;
  plan.parts = zip.finish();
  plan.size_bytes = zip.size_bytes();
  plan.tensors = std::move(tensors);
  return plan;
}

/// Writes xser's reference to a tensor that is in a separate file.
void put_reference(Pickler& pickler, std::uint64_t number) {
  pickler.global("torch_xla.utils.serialization", "TensorReference");
  pickler.op(')');
  pickler.op('\x81');  // creates an object without arguments
  pickler.op('}');
  pickler.string("tid");
  pickler.integer(number);
  pickler.op('s');
  pickler.op('b');  // sets its attributes
}

/// Returns a file without storages.
std::string plain_file(const std::string& archive, const std::string& pickle, const FileMetadata& metadata) {
  return std::move(plan_file(archive, {}, pickle, {}, metadata).parts.front().bytes);
}

}  // namespace

ContainerPlan plan_torch(const std::string& archive, std::vector<TensorEntry> tensors,
                         const std::vector<TensorAlias>& aliases, std::span<const std::uint32_t> crcs,
                         const FileMetadata& metadata) {
  Pickler pickler;
  pickler.op('}');
  pickler.op('(');
  std::unordered_map<std::string, std::size_t> keys;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    validate_name_length(tensors[i].name);
    validate_storable(tensors[i]);
    if (!keys.emplace(tensors[i].name, i).second)
      throw Error(ErrorKind::kInternal, "a file cannot contain two entries with this name").tensor(tensors[i].name);
    pickler.string(tensors[i].name);
    put_tensor(pickler, tensors[i], i);
  }
  for (const TensorAlias& alias : aliases) {
    const auto source = keys.find(alias.source);
    if (source == keys.end()) throw Error(ErrorKind::kInternal, "an alias of no tensor").tensor(alias.name);
    validate_name_length(alias.name);
    pickler.string(alias.name);
    put_tensor(pickler, tensors[source->second], source->second);
  }
  pickler.op('u');
  return plan_file(archive, std::move(tensors), pickler.finish(), crcs, metadata);
}

ContainerPlan plan_torch_value(const std::string& archive, const SavedValue& value, std::vector<TensorEntry> tensors,
                               std::span<const std::uint32_t> crcs, const FileMetadata& metadata) {
  if (count_tensors(value) != tensors.size())
    throw Error(ErrorKind::kInternal, "a file has other tensors than the plan lists");
  for (TensorEntry& tensor : tensors) validate_storable(tensor);
  Pickler pickler;
  put_saved_value(pickler, value, [&](std::uint32_t number) { put_tensor(pickler, tensors[number], number); });
  return plan_file(archive, std::move(tensors), pickler.finish(), crcs, metadata);
}

ContainerPlan plan_torch_tensor(const std::string& archive, TensorEntry tensor, std::uint32_t crc,
                                const FileMetadata& metadata) {
  validate_storable(tensor);
  Pickler pickler;
  put_tensor(pickler, tensor, 0);
  const std::uint32_t crcs[] = {crc};
  return plan_file(archive, {std::move(tensor)}, pickler.finish(), crcs, metadata);
}

std::string xser_reference_file(const std::string& archive,
                                const std::vector<std::pair<std::string, std::uint64_t>>& names,
                                const FileMetadata& metadata) {
  Pickler pickler;
  pickler.op('}');
  pickler.op('(');
  for (const auto& [name, number] : names) {
    validate_name_length(name);
    pickler.string(name);
    put_reference(pickler, number);
  }
  pickler.op('u');
  return plain_file(archive, pickler.finish(), metadata);
}

std::string xser_reference_file(const std::string& archive, const SavedValue& value, const FileMetadata& metadata) {
  Pickler pickler;
  put_saved_value(pickler, value, [&](std::uint32_t number) { put_reference(pickler, number); });
  return plain_file(archive, pickler.finish(), metadata);
}

std::string xser_info_file(const std::string& archive, const std::vector<TensorEntry>& tensors) {
  Pickler pickler;
  pickler.op('}');
  pickler.op('(');
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    pickler.integer(i);
    pickler.op('}');
    pickler.op('(');
    pickler.string("dtype");
    pickler.global("torch", describe(tensors[i].dtype).torch_name);
    pickler.string("shape");
    pickler.global("torch", "Size");
    pickler.tuple(tensors[i].shape);
    pickler.op('\x85');
    pickler.op('R');
    pickler.string("expert_model_parallel");
    pickler.op(tensors[i].expert_parallel ? '\x88' : '\x89');
    pickler.op('u');
  }
  pickler.op('u');
  return plain_file(archive, pickler.finish(), {});
}

}  // namespace reshard
