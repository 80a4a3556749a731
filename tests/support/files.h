#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "reshard/io/memory_files.h"
#include "reshard/tensor/values/shape.h"

namespace reshard {

/// So that JSON arrays of numbers are read as shapes.
void from_json(const nlohmann::json& json, Dims& dims);

}  // namespace reshard

namespace reshard::test {

/// A tensor with its bytes, for making files and looking into them. Written and read without the library's own code.
struct TensorData {
  DType dtype;
  Dims shape;
  std::string bytes;

  friend bool operator==(const TensorData&, const TensorData&) = default;
};
using TensorMap = std::map<std::string, TensorData>;

/// A tensor of float32.
TensorData floats(const Dims& shape, const std::vector<float>& values);

std::string read_file(const std::filesystem::path& path);
void write_file(const std::filesystem::path& path, const std::string& content);

/// A safetensors file of the given header JSON and data, whatever they say.
std::string safetensors_bytes(const std::string& header_json, const std::string& data);

/// A correct safetensors file, tensors in the order of their names, by a plain encoder of the tests' own.
std::string safetensors_bytes(const TensorMap& tensors);

/// The same on disk.
void write_safetensors(const std::filesystem::path& path, const TensorMap& tensors);

/// All tensors of a correct safetensors file, by a plain decoder of the tests' own.
TensorMap read_tensors(const std::filesystem::path& path);

std::string sha256_hex(const std::string& bytes);

/// Names, dtypes, shapes and hashes, as golden.json has them.
nlohmann::json describe_tensors(const TensorMap& tensors);

/// Adds everything that lies under `directory`, on disk, to `files`, under the same paths. Links are followed.
void load(MemoryFiles& files, const std::filesystem::path& directory);

/// testdata/ in the source tree.
std::filesystem::path testdata(const std::filesystem::path& relative);

/// Every path under `directory`, relative to it, sorted; files with their content, directories with
/// "/" after their name, links with "@" and where they lead.
std::map<std::string, std::string> snapshot(const std::filesystem::path& directory);

}  // namespace reshard::test
