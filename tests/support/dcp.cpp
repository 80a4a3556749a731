#include "support/dcp.h"

#include <map>
#include <stdexcept>

#include "reshard/formats/dcp/dcp_item.h"
#include "support/local_files.h"
#include "support/pickles.h"
#include "support/zips.h"

namespace reshard::test::dcp {
namespace {

namespace fs = std::filesystem;
using namespace pickles;

const std::string kMetadata = "torch.distributed.checkpoint.metadata";

std::string storage_class(const std::string& torch_dtype) {
  static const std::map<std::string, std::string> kClasses{{"float32", "FloatStorage"},
                                                           {"float64", "DoubleStorage"},
                                                           {"float16", "HalfStorage"},
                                                           {"bfloat16", "BFloat16Storage"},
                                                           {"int64", "LongStorage"},
                                                           {"int32", "IntStorage"},
                                                           {"int16", "ShortStorage"},
                                                           {"int8", "CharStorage"},
                                                           {"uint8", "ByteStorage"},
                                                           {"bool", "BoolStorage"},
                                                           {"complex64", "ComplexFloatStorage"}};
  const auto found = kClasses.find(torch_dtype);
  return found == kClasses.end() ? std::string() : found->second;
}

std::vector<std::int64_t> signed_of(const Dims& dims) {
  return {dims.begin(), dims.end()};
}

}  // namespace

std::vector<DType> torch_dtypes() {
  std::vector<DType> dtypes;
  for (const DTypeRow& row : kDTypes)
    if (*row.torch_name != '\0' && row.bits % 8 == 0) dtypes.push_back(row.dtype);
  return dtypes;
}

std::string size_value(const std::vector<std::int64_t>& sizes) {
  return call("torch", "Size", {numbers(sizes)});
}

std::string chunk_value(const std::vector<std::int64_t>& offsets, const std::vector<std::int64_t>& sizes) {
  return object(kMetadata, "ChunkStorageMetadata",
                dict({{"offsets", size_value(offsets)}, {"sizes", size_value(sizes)}}));
}

std::string tensor_value(const Tensor& tensor) {
  const std::string state =
      tuple({global("torch", tensor.dtype), call("torch.serialization", "_get_layout", {text("torch.strided")}), kFalse,
             call(kMetadata, "_MEM_FORMAT_ENCODING", {number(0)}), kFalse});
  std::vector<std::string> chunks;
  for (const Chunk& chunk : tensor.chunks) chunks.push_back(chunk_value(chunk.offsets, chunk.sizes));
  return object(kMetadata, "TensorStorageMetadata",
                dict({{"properties", object(kMetadata, "TensorProperties", state)},
                      {"size", size_value(tensor.shape)},
                      {"chunks", list(chunks)}}));
}

std::string index_value(const std::string& name, const std::vector<std::int64_t>* offset) {
  std::vector<std::pair<std::string, std::string>> state{{"fqn", text(name)}, {"index", kNone}};
  if (offset != nullptr) state.emplace_back("offset", size_value(*offset));
  return object(kMetadata, "MetadataIndex", dict(state));
}

std::string place_value(const Place& place) {
  std::vector<std::pair<std::string, std::string>> state{
      {"relative_path", text(place.file)}, {"offset", number(place.offset)}, {"length", number(place.length)}};
  std::vector<std::string> transforms;
  for (const std::string& name : place.transforms) transforms.push_back(text(name));
  if (!transforms.empty()) state.emplace_back("transform_descriptors", list(transforms));
  return object("torch.distributed.checkpoint.filesystem", "_StorageInfo", dict(state));
}

std::string metadata_bytes(const std::string& entries, const std::string& storage, const std::string& more) {
  const std::string state = "}(" + text("state_dict_metadata") + "}(" + entries + "u" + text("storage_data") + "}(" +
                            storage + "u" + more + "u";
  return stream(object(kMetadata, "Metadata", state));
}

std::string metadata_bytes(const Metadata& metadata) {
  std::string entries, storage, paths;
  const auto add_path = [&](const std::string& name) {
    const auto own = metadata.paths.find(name);
    paths += text(name) + (own == metadata.paths.end() ? tuple({text(name)}) : own->second);
  };
  for (const Tensor& tensor : metadata.tensors) {
    entries += text(tensor.name) + tensor_value(tensor);
    for (const Chunk& chunk : tensor.chunks)
      if (chunk.has_place) storage += index_value(tensor.name, &chunk.offsets) + place_value(chunk.place);
    add_path(tensor.name);
  }
  for (const Bytes& bytes : metadata.bytes) {
    entries += text(bytes.name) + object(kMetadata, "BytesStorageMetadata", "}");
    storage += index_value(bytes.name, nullptr) + place_value(bytes.place);
    add_path(bytes.name);
  }
  const std::string storage_meta =
      object(kMetadata, "StorageMeta",
             dict({{"checkpoint_id", call("pathlib", "PosixPath", {text("a"), text("b")})}, {"save_id", text("x")}}));
  return metadata_bytes(
      entries, storage,
      (metadata.has_paths ? text("planner_data") + "}(" + paths + "u" : "") + text("storage_meta") + storage_meta);
}

std::string item_bytes(const std::string& torch_dtype, const std::vector<std::int64_t>& shape, const std::string& bytes,
                       const std::vector<std::int64_t>& strides) {
  View view;
  view.type = storage_class(torch_dtype);
  view.shape = shape;
  view.strides = strides;
  std::int64_t elems = 1;
  if (strides.empty()) view.strides.resize(shape.size());
  for (std::size_t d = shape.size(); d-- > 0;) {
    if (strides.empty()) view.strides[d] = elems;
    elems *= shape[d];
  }
  view.elems = view.type.empty() ? static_cast<std::int64_t>(bytes.size()) : elems;
  const std::string value = view.type.empty() ? tensor_v3(view, torch_dtype) : tensor(view);
  return torch_zip(stream(value), {{"0", bytes}});
}

std::string slice(const TensorData& whole, const Dims& begin, const Dims& size) {
  const std::size_t elem_bytes = bits(whole.dtype) / 8;
  std::string bytes;
  std::uint64_t elems = 1;
  for (const std::uint64_t one : size) elems *= one;
  Dims index(size.size());
  for (std::uint64_t i = 0; i < elems; ++i) {
    std::uint64_t at = 0;
    for (std::size_t d = 0; d < size.size(); ++d) at = at * whole.shape[d] + begin[d] + index[d];
    bytes.append(whole.bytes, at * elem_bytes, elem_bytes);
    for (std::size_t d = size.size(); d-- > 0 && ++index[d] == size[d];) index[d] = 0;
  }
  return bytes;
}

namespace {

void write(const fs::path& directory, const std::vector<Whole>& tensors, const std::vector<Object>& objects,
           const std::map<std::string, std::string>& paths, const std::string& metadata_file) {
  Metadata metadata;
  metadata.paths = paths;
  std::map<std::uint32_t, std::string> ranks;
  const auto put = [&](std::uint32_t rank, const std::string& item) {
    std::string& file = ranks[rank];
    Place place{"__" + std::to_string(rank) + "_0.distcp",
                static_cast<std::int64_t>(file.size()),
                static_cast<std::int64_t>(item.size()),
                {}};
    file += item;
    return place;
  };
  for (const Object& object : objects) metadata.bytes.push_back({object.name, put(object.rank, object.bytes)});
  for (const Whole& whole : tensors) {
    Tensor tensor{whole.name, describe(whole.data.dtype).torch_name, signed_of(whole.data.shape), {}};
    for (const Part& part : whole.parts) {
      const std::string item = item_bytes(tensor.dtype, signed_of(part.size), slice(whole.data, part.begin, part.size));
      tensor.chunks.push_back({signed_of(part.begin), signed_of(part.size), put(part.rank, item)});
    }
    metadata.tensors.push_back(std::move(tensor));
  }
  fs::create_directories(directory);
  for (const auto& [rank, bytes] : ranks) write_file(directory / ("__" + std::to_string(rank) + "_0.distcp"), bytes);
  write_file(directory / metadata_file, metadata_bytes(metadata));
}

/// Puts the elements of a chunk, in C order, where they belong.
void put_box(TensorData& data, const Box& box, const std::string& bytes) {
  const std::size_t elem_bytes = bits(data.dtype) / 8;
  Dims index(box.size.size());
  for (std::size_t i = 0; i * elem_bytes < bytes.size(); ++i) {
    std::uint64_t at = 0;
    for (std::size_t d = 0; d < index.size(); ++d) at = at * data.shape[d] + box.begin[d] + index[d];
    data.bytes.replace(at * elem_bytes, elem_bytes, bytes, i * elem_bytes, elem_bytes);
    for (std::size_t d = index.size(); d-- > 0 && ++index[d] == box.size[d];) index[d] = 0;
  }
}

}  // namespace

std::string object_bytes(const std::string& value) {
  return torch_zip(stream(text(value)), {});
}

void write(const fs::path& directory, const std::vector<Whole>& tensors, const std::vector<Object>& objects,
           const std::map<std::string, std::string>& paths) {
  write(directory, tensors, objects, paths, ".metadata");
}

void write_rank(const fs::path& directory, std::vector<Whole> tensors, std::uint32_t rank,
                const std::vector<Object>& objects) {
  for (Whole& tensor : tensors) std::erase_if(tensor.parts, [&](const Part& part) { return part.rank != rank; });
  std::erase_if(tensors, [](const Whole& tensor) { return tensor.parts.empty(); });
  std::vector<Object> own = objects;
  std::erase_if(own, [&](const Object& object) { return object.rank != rank; });
  write(directory, tensors, own, {}, "__" + std::to_string(rank) + ".metadata");
}

DcpMetadata metadata_of(const fs::path& directory) {
  const fs::path path = directory / kDcpMetadataFile;
  return read_dcp_metadata(*local_storage().open(path), path);
}

Content read(const fs::path& directory) {
  const DcpMetadata metadata = metadata_of(directory);
  const auto bytes_at = [&](const DcpPlace& place, std::uint64_t offset, std::uint64_t size) {
    return read_file(directory / metadata.files[place.file]).substr(offset, size);
  };
  Content content;
  content.paths = {metadata.paths.begin(), metadata.paths.end()};
  for (const DcpTensor& tensor : metadata.tensors) {
    TensorData& data = content.tensors[tensor.name];
    data = {*tensor.dtype, tensor.shape, {}};
    data.bytes.resize(*num_bytes(*tensor.dtype, tensor.shape), '?');
    for (const DcpChunk& chunk : tensor.chunks) {
      DcpFile file(local_storage(), directory / metadata.files[chunk.place.file]);
      const TensorEntry found = file.find(tensor, chunk).tensor;
      put_box(data, chunk.box, bytes_at(chunk.place, found.offset_bytes, found.size_bytes));
    }
  }
  for (const DcpBytes& object : metadata.bytes)
    content.objects[object.name] = bytes_at(object.place, object.place.offset_bytes, object.place.length_bytes);
  return content;
}

}  // namespace reshard::test::dcp
