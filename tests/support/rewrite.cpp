#include "support/rewrite.h"

#include <cstring>
#include <nlohmann/json.hpp>

namespace reshard::test {
namespace {

/// A safetensors file, taken apart.
struct File {
  nlohmann::json header;
  std::string data;
};

File read(const std::filesystem::path& path) {
  const std::string bytes = read_file(path);
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  return {nlohmann::json::parse(bytes.substr(8, header_bytes)), bytes.substr(8 + header_bytes)};
}

}  // namespace

void rewrite_safetensors(const std::filesystem::path& path, const TensorMap& tensors) {
  const nlohmann::json metadata = read(path).header.at("__metadata__");
  write_safetensors(path, tensors);
  File written = read(path);
  written.header["__metadata__"] = metadata;
  write_file(path, safetensors_bytes(written.header.dump(), written.data));
}

}  // namespace reshard::test
