// formats/: containers of tensors. A reader says which tensors a file holds and where their bytes lie; a writer takes
// tensors and says where their bytes shall lie. Neither moves tensor data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reshard/io/files.h"
#include "reshard/tensor/values/shape.h"

namespace reshard {

/// One tensor of a container, little-endian.
struct TensorEntry {
  std::string name;
  DType dtype;
  Dims shape;
  std::uint64_t offset_bytes = 0;  // of the element at index 0, from the start of its file
  std::uint64_t size_bytes = 0;    // of all its elements
  std::uint32_t file = 0;          // index into Container::files
  Dims strides;                    // in elements, one a dim; empty where the elements lie in C order
  bool expert_parallel = false;    // of a writer: xser says which tensors are of experts that are spread over ranks
  bool is_object = false;  // of a writer: bytes that torch.save made of an object, which stand there as they are
};

struct ContainerFile {
  std::filesystem::path path;
  std::uint64_t size_bytes = 0;
  std::optional<FileStamp> stamp;  // from before it was read, if anybody looked
};

/// What a reader found in one container, which is one file but for xser. Invariant, validated by the reader: names are
/// unique, and every element of every entry lies inside its file. Only where the format allows it (torch's storages) do
/// entries share bytes.
struct Container {
  std::filesystem::path path;        // the file that names all else
  std::uint64_t size_bytes = 0;      // of all files
  std::vector<TensorEntry> tensors;  // safetensors: by offset; torch and xser: in the state dict's order
  std::vector<std::pair<std::string, std::string>> metadata;
  std::vector<std::string> warnings;  // whole sentences, without the path
  std::vector<ContainerFile> files;   // never empty
};

/// How many tensors there are, and their bytes.
struct TensorCount {
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
};

/// Bytes of a file that are not a tensor's.
struct FilePart {
  std::uint64_t offset_bytes = 0;
  std::string bytes;
};

/// What a writer wants in one file: `parts` and each tensor at its place. Between them lies nothing.
struct ContainerPlan {
  std::vector<FilePart> parts;  // ascending
  std::uint64_t size_bytes = 0;
  std::vector<TensorEntry> tensors;  // by offset
};

}  // namespace reshard
