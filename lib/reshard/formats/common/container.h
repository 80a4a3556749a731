// formats/: containers of tensors. A reader returns the tensors of a file and their offsets; a writer plans the offsets
// of given tensors. Neither moves tensor data.
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

/// A stored tensor, little-endian.
struct TensorEntry {
  std::string name;
  DType dtype;
  Dims shape;
  std::uint64_t offset_bytes = 0;  // element at index 0, from the start of its file
  std::uint64_t size_bytes = 0;    // total size of the elements
  std::uint32_t file = 0;          // index into Container::files
  Dims strides;                    // in elements, one per dim; empty if the elements are in C order
  bool expert_parallel = false;    // writers only: xser records which tensors belong to expert-parallel ranks
  bool is_object = false;  // writers only: bytes of an object, as torch.save wrote them, which are stored unchanged
};

struct ContainerFile {
  std::filesystem::path path;
  std::uint64_t size_bytes = 0;
  std::optional<FileStamp> stamp;  // taken before the file was read, if at all
};

/// Contents of a container: one file, except for xser. Invariant, validated by the reader: names are unique, and every
/// element of every entry is inside its file. Entries share bytes only if the format allows it (torch's storages).
struct Container {
  std::filesystem::path path;        // the file that names all others
  std::uint64_t size_bytes = 0;      // total size of all files
  std::vector<TensorEntry> tensors;  // safetensors: by offset; torch and xser: in the state dict's order
  std::vector<std::pair<std::string, std::string>> metadata;
  std::vector<std::string> warnings;  // complete sentences, without the path
  std::vector<ContainerFile> files;   // never empty
};

/// Number of tensors, and their total size.
struct TensorCount {
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
};

/// Bytes of a file that do not belong to a tensor.
struct FilePart {
  std::uint64_t offset_bytes = 0;
  std::string bytes;
};

/// A second name for a tensor of the same file; both names share one storage.
struct TensorAlias {
  std::string name;
  std::string source;
};

/// Layout of a file to be written: `parts`, and the offset of each tensor. Bytes between them are undefined.
struct ContainerPlan {
  std::vector<FilePart> parts;  // ascending
  std::uint64_t size_bytes = 0;
  std::vector<TensorEntry> tensors;  // by offset
};

}  // namespace reshard
