#include "support/files.h"

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <stdexcept>

#include "reshard/base/sha256.h"

namespace reshard {

void from_json(const nlohmann::json& json, Dims& dims) {
  dims.clear();
  for (const nlohmann::json& number : json) dims.push_back(number.get<std::uint64_t>());
}

}  // namespace reshard

namespace reshard::test {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot open " + path.string());
  std::ostringstream content;
  content << in.rdbuf();
  return content.str();
}

void write_file(const fs::path& path, const std::string& content) {
  fs::create_directories(path.parent_path());
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << content;
  out.close();
  if (!out) throw std::runtime_error("cannot write " + path.string());
}

std::string safetensors_bytes(const std::string& header_json, const std::string& data) {
  const std::uint64_t length = header_json.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header_json + data;
}

std::string safetensors_bytes(const TensorMap& tensors) {
  nlohmann::json header = nlohmann::json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", describe(tensor.dtype).name},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  return safetensors_bytes(header.dump(), data);
}

void write_safetensors(const fs::path& path, const TensorMap& tensors) {
  write_file(path, safetensors_bytes(tensors));
}

TensorMap read_tensors(const fs::path& path) {
  const std::string file = read_file(path);
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  const auto header = nlohmann::json::parse(file.substr(8, length));
  TensorMap tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto begin = entry["data_offsets"][0].get<std::size_t>();
    const auto end = entry["data_offsets"][1].get<std::size_t>();
    tensors[name] = {*dtype_from_name(entry["dtype"].get<std::string>()), entry["shape"].get<Dims>(),
                     file.substr(8 + length + begin, end - begin)};
  }
  return tensors;
}

TensorData floats(const Dims& shape, const std::vector<float>& values) {
  return {DType::kF32, shape, {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)}};
}

std::string sha256_hex(const std::string& bytes) {
  return to_hex(sha256(std::as_bytes(std::span(bytes))));
}

nlohmann::json describe_tensors(const TensorMap& tensors) {
  nlohmann::json list = nlohmann::json::object();
  for (const auto& [name, tensor] : tensors)
    list[name] = {
        {"dtype", describe(tensor.dtype).torch_name}, {"shape", tensor.shape}, {"sha256", sha256_hex(tensor.bytes)}};
  return list;
}

void load(MemoryFiles& files, const fs::path& directory) {
  files.make_directory(directory);
  for (const auto& entry : fs::recursive_directory_iterator(directory, fs::directory_options::follow_directory_symlink))
    if (entry.is_directory())
      files.make_directory(entry.path());
    else
      files.write(entry.path(), read_file(entry.path()));
}

fs::path testdata(const fs::path& relative) {
  return fs::path(RESHARD_TESTDATA) / relative;
}

std::map<std::string, std::string> snapshot(const fs::path& directory) {
  std::map<std::string, std::string> entries;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    const std::string name = fs::relative(entry.path(), directory).string();
    if (entry.is_symlink())
      entries[name + "@"] = fs::read_symlink(entry.path()).string();
    else if (entry.is_directory())
      entries[name + "/"] = {};
    else
      entries[name] = read_file(entry.path());
  }
  return entries;
}

}  // namespace reshard::test
