// Compares two Hugging Face checkpoints of safetensors files tensor by tensor: names, dtypes, shapes, bytes.
// Independent of the library, so that it cannot share a defect with it. Memory: two buffers and the headers.
//
//   compare_checkpoints DIR_A DIR_B
//
// Exit codes: 0 the same, 1 different (the first differences on stdout), 2 could not compare.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::size_t kBufferBytes = std::size_t{8} << 20;
constexpr std::size_t kMostDifferences = 20;

struct Tensor {
  fs::path file;
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::uint64_t offset_bytes = 0;  // from the start of the file
  std::uint64_t size_bytes = 0;
};
using Checkpoint = std::map<std::string, Tensor>;

std::ifstream open(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot open " + path.string());
  return in;
}

void read(std::ifstream& in, char* out, std::uint64_t size_bytes, const fs::path& path) {
  if (!in.read(out, static_cast<std::streamsize>(size_bytes)))
    throw std::runtime_error(path.string() + " ends too early");
}

void add_file(const fs::path& path, Checkpoint& checkpoint) {
  std::ifstream in = open(path);
  std::uint64_t header_bytes = 0;
  read(in, reinterpret_cast<char*>(&header_bytes), sizeof header_bytes, path);
  const std::uint64_t file_bytes = fs::file_size(path);
  if (header_bytes > file_bytes) throw std::runtime_error(path.string() + " has a header longer than itself");
  std::string text(header_bytes, '\0');
  read(in, text.data(), header_bytes, path);
  const Json header = Json::parse(text);
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto begin = entry.at("data_offsets").at(0).get<std::uint64_t>();
    const auto end = entry.at("data_offsets").at(1).get<std::uint64_t>();
    if (begin > end || end > file_bytes - 8 - header_bytes)
      throw std::runtime_error(path.string() + ": the bytes of " + name + " are outside the file");
    Tensor tensor{path, entry.at("dtype"), entry.at("shape"), 8 + header_bytes + begin, end - begin};
    if (!checkpoint.emplace(name, std::move(tensor)).second)
      throw std::runtime_error(path.string() + ": " + name + " is in another file, too");
  }
}

Checkpoint open_checkpoint(const fs::path& directory) {
  Checkpoint checkpoint;
  const fs::path index_path = directory / "model.safetensors.index.json";
  if (!fs::exists(index_path)) {
    add_file(directory / "model.safetensors", checkpoint);
    return checkpoint;
  }
  std::ifstream index = open(index_path);
  const Json weight_map = Json::parse(index).at("weight_map");
  std::set<std::string> files;
  for (const auto& [name, file] : weight_map.items()) files.insert(file.get<std::string>());
  for (const std::string& file : files) add_file(directory / file, checkpoint);
  for (const auto& [name, tensor] : checkpoint)
    if (!weight_map.contains(name) || weight_map[name] != tensor.file.filename().string())
      throw std::runtime_error(index_path.string() + " does not list " + name + " where it is");
  if (weight_map.size() != checkpoint.size())
    throw std::runtime_error(index_path.string() + " lists tensors that the files do not contain");
  return checkpoint;
}

std::string describe(const Tensor& tensor) {
  return tensor.dtype + " " + Json(tensor.shape).dump() + " in " + tensor.file.filename().string();
}

/// Describes the difference between two tensors; empty if they are equal.
std::string difference(const Tensor& a, const Tensor& b, std::vector<char>& a_buffer, std::vector<char>& b_buffer) {
  if (a.dtype != b.dtype || a.shape != b.shape || a.size_bytes != b.size_bytes)
    return describe(a) + " against " + describe(b);
  std::ifstream a_in = open(a.file);
  std::ifstream b_in = open(b.file);
  a_in.seekg(static_cast<std::streamoff>(a.offset_bytes));
  b_in.seekg(static_cast<std::streamoff>(b.offset_bytes));
  for (std::uint64_t done = 0; done < a.size_bytes;) {
    const std::uint64_t bytes = std::min<std::uint64_t>(kBufferBytes, a.size_bytes - done);
    read(a_in, a_buffer.data(), bytes, a.file);
    read(b_in, b_buffer.data(), bytes, b.file);
    if (std::memcmp(a_buffer.data(), b_buffer.data(), bytes) != 0) {
      const auto [first, other] = std::mismatch(a_buffer.begin(), a_buffer.end(), b_buffer.begin());
      return "first different byte is " + std::to_string(done + static_cast<std::uint64_t>(first - a_buffer.begin())) +
             " of " + std::to_string(a.size_bytes) + "; " + describe(a) + " against " + describe(b);
    }
    done += bytes;
  }
  return {};
}

bool is_tied(const fs::path& directory) {
  std::ifstream config(directory / "config.json");
  return config && Json::parse(config).value("tie_word_embeddings", false);
}

/// Returns the tensor of `b` to compare with `name`: its namesake, or the embedding if a tied model stores only that;
/// nullptr if `b` has neither.
const Tensor* counterpart(const std::string& name, const Checkpoint& b, bool tied) {
  auto found = b.find(name);
  if (found == b.end() && tied && name == "lm_head.weight") found = b.find("model.embed_tokens.weight");
  return found == b.end() ? nullptr : &found->second;
}

/// \returns the number of tensors that differ.
std::size_t compare(const fs::path& a_directory, const fs::path& b_directory) {
  const Checkpoint a = open_checkpoint(a_directory);
  const Checkpoint b = open_checkpoint(b_directory);
  const bool tied = is_tied(a_directory);
  std::vector<char> a_buffer(kBufferBytes);
  std::vector<char> b_buffer(kBufferBytes);
  std::size_t differences = 0;
  std::uint64_t compared_bytes = 0;
  const auto report = [&](const std::string& name, const std::string& what) {
    if (++differences <= kMostDifferences) std::cout << name << ": " << what << "\n";
  };
  for (const auto& [name, tensor] : a) {
    const Tensor* other = counterpart(name, b, tied);
    const std::string what =
        other ? difference(tensor, *other, a_buffer, b_buffer) : "missing from " + b_directory.string();
    if (!what.empty()) report(name, what);
    compared_bytes += tensor.size_bytes;
  }
  for (const auto& [name, tensor] : b)
    if (!a.count(name)) report(name, "missing from " + a_directory.string());
  if (differences == 0)
    std::cout << a.size() << " tensors, " << compared_bytes << " bytes: all the same\n";
  else
    std::cout << differences << " of " << a.size() << " tensors differ\n";
  return differences;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: compare_checkpoints DIR_A DIR_B\n";
    return 2;
  }
  try {
    return compare(argv[1], argv[2]) == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << "compare_checkpoints: " << error.what() << "\n";
    return 2;
  }
}
