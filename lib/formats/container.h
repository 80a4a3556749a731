// formats/: containers of tensors. A reader says which tensors a file holds and where their bytes lie; a writer takes
// tensors and says where their bytes shall lie. Neither moves tensor data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "reshard/tensor/shape.h"

namespace reshard {

/// One tensor of a file, C-ordered, little-endian.
struct TensorEntry {
  std::string name;
  DType dtype;
  Dims shape;
  std::uint64_t offset_bytes = 0;  // of its first byte, from the start of the file
  std::uint64_t size_bytes = 0;
};

/// What a reader found in one file. Invariant, proved by the reader: names are unique, every entry's bytes lie inside
/// the file, and the bytes of no two entries overlap.
struct Container {
  std::filesystem::path path;
  std::uint64_t size_bytes = 0;
  std::vector<TensorEntry> tensors;  // by offset
  std::vector<std::pair<std::string, std::string>> metadata;
  std::vector<std::string> warnings;  // whole sentences, without the path
};

/// What a writer wants in one file: `prefix` at its start, then each tensor at its place.
struct ContainerPlan {
  std::string prefix;
  std::uint64_t size_bytes = 0;
  std::vector<TensorEntry> tensors;  // by offset
};

}  // namespace reshard
