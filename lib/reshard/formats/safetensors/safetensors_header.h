#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/tensor/values/shape.h"

namespace reshard {

/// A parsed safetensors header whose offsets are not yet validated.
struct SafetensorsHeader {
  struct Tensor {
    std::string name;
    DType dtype;
    Dims shape;
    std::uint64_t begin;  // offset of its bytes, from the start of the data
    std::uint64_t end;
  };
  std::vector<Tensor> tensors;  // in the header's order
  std::vector<std::pair<std::string, std::string>> metadata;
  std::vector<std::string> warnings;
};

/// Parses the JSON of a header in one pass, without building a document. Validates structure and types: one object of
/// tensors, each with dtype, shape and data_offsets exactly once; unique names without control characters; string
/// metadata.
/// \throws Error kBadInput.
SafetensorsHeader parse_header_json(std::string_view json, const std::filesystem::path& path);

}  // namespace reshard
