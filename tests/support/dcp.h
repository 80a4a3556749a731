#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "reshard/formats/dcp/dcp_metadata.h"
#include "support/files.h"

/// Checkpoints of torch.distributed.checkpoint by hand, as torch 2.6 writes them.
namespace reshard::test::dcp {

/// Those that torch has, in whole bytes.
std::vector<DType> torch_dtypes();

struct Place {
  std::string file = "__0_0.distcp";
  std::int64_t offset = 0;
  std::int64_t length = 0;
  std::vector<std::string> transforms;
};

struct Chunk {
  std::vector<std::int64_t> offsets, sizes;
  Place place;
  bool has_place = true;
};

struct Tensor {
  std::string name;
  std::string dtype = "float32";
  std::vector<std::int64_t> shape;
  std::vector<Chunk> chunks;
};

struct Bytes {
  std::string name;
  Place place;
};

struct Metadata {
  std::vector<Tensor> tensors;
  std::vector<Bytes> bytes;
  bool has_paths = true;
  std::map<std::string, std::string> paths;  // pickled, where they are not the name alone
};

/// Pickled values, to make others of than `metadata_bytes` does.
std::string tensor_value(const Tensor& tensor);
std::string chunk_value(const std::vector<std::int64_t>& offsets, const std::vector<std::int64_t>& sizes);
std::string size_value(const std::vector<std::int64_t>& sizes);
std::string index_value(const std::string& name, const std::vector<std::int64_t>* offset);
std::string place_value(const Place& place);

/// A `.metadata`.
std::string metadata_bytes(const Metadata& metadata);
/// The same of dictionaries whose pickled items are given: keys and values, one after the other.
std::string metadata_bytes(const std::string& entries, const std::string& storage, const std::string& more = {});

/// One item: torch.save of a tensor of that dtype, by its name in torch. `strides` are those of `bytes`; empty: C
/// order.
std::string item_bytes(const std::string& torch_dtype, const std::vector<std::int64_t>& shape, const std::string& bytes,
                       const std::vector<std::int64_t>& strides = {});

/// A tensor in parts: where each begins and how large it is, and which rank has it.
struct Part {
  Dims begin, size;
  std::uint32_t rank = 0;
};
struct Whole {
  std::string name;
  TensorData data;
  std::vector<Part> parts;
};

/// An object, in the file of one rank.
struct Object {
  std::string name;
  std::string bytes;
  std::uint32_t rank = 0;
};
/// What torch.save makes of a text.
std::string object_bytes(const std::string& text);

/// Writes `.metadata` and a file per rank; or, of all ranks, what one of them saves without the others: its file, and
/// metadata of its own parts.
void write(const std::filesystem::path& directory, const std::vector<Whole>& tensors,
           const std::vector<Object>& objects = {}, const std::map<std::string, std::string>& paths = {});
void write_rank(const std::filesystem::path& directory, std::vector<Whole> tensors, std::uint32_t rank,
                const std::vector<Object>& objects = {});

/// Its `.metadata`.
DcpMetadata metadata_of(const std::filesystem::path& directory);

/// All that a directory holds, put together from its chunks.
struct Content {
  std::map<std::string, TensorData> tensors;
  std::map<std::string, std::string> objects;
  std::map<std::string, DcpPath> paths;
};
Content read(const std::filesystem::path& directory);

/// The elements of a box, in C order.
std::string slice(const TensorData& whole, const Dims& begin, const Dims& size);

}  // namespace reshard::test::dcp
