#include "support/spoilers.h"

#include <nlohmann/json.hpp>

#include "reshard/base/json.h"

namespace reshard::test {

namespace fs = std::filesystem;
namespace {

void rewrite_in_place(const fs::path& path, const std::string& content) {
  const auto modified = fs::last_write_time(path);
  write_file(path, content);
  fs::last_write_time(path, modified);
}

}  // namespace

void swap_files(const fs::path& a, const fs::path& b) {
  const fs::path aside = a.string() + ".aside";
  fs::rename(a, aside);
  fs::rename(b, a);
  fs::rename(aside, b);
}

void merge_json(const fs::path& path, const nlohmann::json& fields) {
  nlohmann::json content = parse_json(read_file(path), path, JsonDialect::kPython);
  content.merge_patch(fields);
  rewrite_in_place(path, content.dump());
}

void flip_byte(const fs::path& path, std::uint64_t offset_bytes) {
  std::string content = read_file(path);
  char& byte = content.at(offset_bytes);
  byte = static_cast<char>(byte ^ 1);
  rewrite_in_place(path, content);
}

void shorten(const fs::path& path, std::uint64_t bytes) {
  const auto modified = fs::last_write_time(path);
  fs::resize_file(path, fs::file_size(path) - bytes);
  fs::last_write_time(path, modified);
}

void change_tensors(const fs::path& path, const std::function<void(TensorMap&)>& change) {
  TensorMap tensors = read_tensors(path);
  change(tensors);
  write_safetensors(path, tensors);
}

}  // namespace reshard::test
