#include "reshard/formats/dcp/dcp_plan.h"

#include <utility>

#include "reshard/base/checked.h"
#include "reshard/base/error.h"
#include "reshard/formats/common/tensor_names.h"
#include "reshard/formats/pickle/pickler.h"
#include "reshard/formats/torch/torch_plan.h"

namespace reshard {
namespace {

constexpr const char* kMetadataModule = "torch.distributed.checkpoint.metadata";
constexpr const char* kFilesModule = "torch.distributed.checkpoint.filesystem";
constexpr const char* kPropertiesModule = "torch.distributed._shard.sharded_tensor.metadata";
/// Folder inside an item. torch.save uses this name if it does not know the file name.
constexpr const char* kItemArchive = "archive";
constexpr std::uint64_t kItemAlignment = 64;

/// Rejects names that read_dcp_metadata and torch would reject.
void validate_entry_name(const std::string& name) {
  validate_name_length(name);
  if (!name.empty() && is_plain_text(name)) return;
  throw Error(ErrorKind::kBadInput,
              name.empty() ? "has an empty name" : "its name has a control character or is not UTF-8")
      .tensor(name)
      .hint("torch cannot load a checkpoint with such a name: change it with convert `rename`");
}

void put_object(Pickler& pickler, const char* module, const char* name) {
  pickler.shared_global(module, name);
  pickler.op(')');
  pickler.op('\x81');  // creates an object without arguments
}

void put_size(Pickler& pickler, const Dims& dims) {
  pickler.shared_global("torch", "Size");
  pickler.tuple(dims);
  pickler.op('\x85');
  pickler.op('R');
}

/// Writes the properties. Their state is a tuple: dtype, layout, requires_grad, memory format, pin_memory.
void put_properties(Pickler& pickler, DType dtype) {
  put_object(pickler, kPropertiesModule, "TensorProperties");
  pickler.op('(');
  pickler.shared_global("torch", describe(dtype).torch_name);
  pickler.shared("layout", [&] {
    pickler.global("torch.serialization", "_get_layout");
    pickler.string("torch.strided");
    pickler.op('\x85');
    pickler.op('R');
  });
  pickler.op('\x89');  // false
  pickler.shared("memory format", [&] {
    pickler.global(kPropertiesModule, "MEM_FORMAT_ENCODING");
    pickler.integer(0);  // contiguous
    pickler.op('\x85');
    pickler.op('R');
  });
  pickler.op('\x89');
  pickler.op('t');
  pickler.op('b');  // sets the state
}

void put_chunk(Pickler& pickler, const Box& box) {
  put_object(pickler, kMetadataModule, "ChunkStorageMetadata");
  pickler.op('}');
  pickler.op('(');
  pickler.shared_string("offsets");
  put_size(pickler, box.begin);
  pickler.shared_string("sizes");
  put_size(pickler, box.size);
  pickler.op('u');
  pickler.op('b');
}

void put_tensor(Pickler& pickler, const DcpTensor& tensor) {
  if (!tensor.dtype || *describe(*tensor.dtype).torch_name == '\0')
    throw Error(ErrorKind::kUnsupported, "torch has no dtype for it").tensor(tensor.name);
  put_object(pickler, kMetadataModule, "TensorStorageMetadata");
  pickler.op('}');
  pickler.op('(');
  pickler.shared_string("properties");
  put_properties(pickler, *tensor.dtype);
  pickler.shared_string("size");
  put_size(pickler, tensor.shape);
  pickler.shared_string("chunks");
  pickler.op(']');
  pickler.fill('e', [&](const auto& next) {
    for (const DcpChunk& chunk : tensor.chunks) {
      next();
      put_chunk(pickler, chunk.box);
    }
  });
  pickler.op('u');
  pickler.op('b');
}

void put_path(Pickler& pickler, const DcpPath& path) {
  pickler.op('(');
  for (const auto& part : path) {
    if (const auto* name = std::get_if<std::string>(&part))
      pickler.shared_string(*name);
    else
      pickler.integer(static_cast<std::uint64_t>(std::get<std::int64_t>(part)));
  }
  pickler.op('t');
}

/// Writes an item of torch's storage_data: key and value. `offset` is the offset of a tensor's chunk, and null for an
/// object.
void put_place(Pickler& pickler, const std::string& name, const Dims* offset, const DcpPlace& place,
               const std::vector<std::string>& files) {
  put_object(pickler, kMetadataModule, "MetadataIndex");
  pickler.op('}');
  pickler.op('(');
  pickler.shared_string("fqn");
  pickler.shared_string(name);
  pickler.shared_string("index");
  pickler.op('N');
  if (offset != nullptr) {
    pickler.shared_string("offset");
    put_size(pickler, *offset);
  }
  pickler.op('u');
  pickler.op('b');
  put_object(pickler, kFilesModule, "_StorageInfo");
  pickler.op('}');
  pickler.op('(');
  pickler.shared_string("relative_path");
  pickler.shared_string(files[place.file]);
  pickler.shared_string("offset");
  pickler.integer(place.offset_bytes);
  pickler.shared_string("length");
  pickler.integer(place.length_bytes);
  pickler.op('u');
  pickler.op('b');
}

/// Estimated size of the file; tends to be too large.
std::size_t estimated_bytes(const DcpMetadata& metadata) {
  constexpr std::size_t kEntryBytes = 256, kChunkBytes = 128, kDimBytes = 15;
  std::size_t bytes = 0;
  for (const DcpTensor& tensor : metadata.tensors)
    bytes +=
        kEntryBytes + 2 * tensor.name.size() + tensor.chunks.size() * (kChunkBytes + kDimBytes * tensor.shape.size());
  return bytes + (metadata.bytes.size() + metadata.files.size()) * kEntryBytes;
}

}  // namespace

std::string dcp_metadata_file(const DcpMetadata& metadata) {
  Pickler pickler;
  pickler.reserve(estimated_bytes(metadata));  // otherwise growing the text would need twice the memory
  put_object(pickler, kMetadataModule, "Metadata");
  pickler.op('}');
  pickler.op('(');
  pickler.string("state_dict_metadata");
  pickler.op('}');
  pickler.fill('u', [&](const auto& next) {
    for (const DcpTensor& tensor : metadata.tensors) {
      validate_entry_name(tensor.name);
      next();
      pickler.shared_string(tensor.name);
      put_tensor(pickler, tensor);
    }
    for (const DcpBytes& object : metadata.bytes) {
      validate_entry_name(object.name);
      next();
      pickler.shared_string(object.name);
      put_object(pickler, kMetadataModule, "BytesStorageMetadata");
    }
  });
  pickler.string("planner_data");
  pickler.op('}');
  pickler.fill('u', [&](const auto& next) {
    for (const auto& [name, path] : metadata.paths) {
      next();
      pickler.shared_string(name);
      put_path(pickler, path);
    }
  });
  pickler.string("storage_data");
  pickler.op('}');
  pickler.fill('u', [&](const auto& next) {
    for (const DcpTensor& tensor : metadata.tensors)
      for (const DcpChunk& chunk : tensor.chunks) {
        next();
        put_place(pickler, tensor.name, &chunk.box.begin, chunk.place, metadata.files);
      }
    for (const DcpBytes& object : metadata.bytes) {
      next();
      put_place(pickler, object.name, nullptr, object.place, metadata.files);
    }
  });
  pickler.op('u');
  pickler.op('b');
  return pickler.finish();
}

DcpItemsPlan plan_dcp_items(std::vector<TensorEntry> tensors, std::span<const std::uint32_t> crcs,
                            std::span<const std::string> contents) {
  const auto aligned = [](std::uint64_t offset) { return rounded_up(offset, kItemAlignment); };
  DcpItemsPlan plan;
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t begin = aligned(end);
    if (tensors[i].is_object) {
      tensors[i].offset_bytes = begin;
      tensors[i].size_bytes = num_bytes(tensors[i].dtype, tensors[i].shape).value_or(0);
      end = begin + tensors[i].size_bytes;
      plan.places.push_back({0, 0, begin, tensors[i].size_bytes});
      plan.container.tensors.push_back(std::move(tensors[i]));
      continue;
    }
    ContainerPlan item = plan_torch_tensor(kItemArchive, std::move(tensors[i]), crcs.empty() ? 0 : crcs[i]);
    for (FilePart& part : item.parts) {
      part.offset_bytes += begin;
      plan.container.parts.push_back(std::move(part));
    }
    item.tensors.front().offset_bytes += begin;
    plan.container.tensors.push_back(std::move(item.tensors.front()));
    plan.places.push_back({0, 0, begin, item.size_bytes});
    end = begin + item.size_bytes;
  }
  for (const std::string& content : contents) {
    const std::uint64_t begin = aligned(end);
    plan.container.parts.push_back({begin, content});
    plan.places.push_back({0, 0, begin, content.size()});
    end = begin + content.size();
  }
  plan.container.size_bytes = end;
  return plan;
}

}  // namespace reshard
