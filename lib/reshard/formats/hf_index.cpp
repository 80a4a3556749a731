#include "reshard/formats/hf_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/formats/read_container.h"
#include "reshard/io/storage.h"
#include "reshard/io/text_file.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{64}
                                         << 20;  // half a million tensors; parsed it takes 20 times that

/// Of names such as "model-00001-of-00003.safetensors".
struct NumberedNames {
  std::string_view stem;
  std::string_view ending;

  bool match(std::string_view name) const {
    return name.starts_with(stem) && name.substr(stem.size()).starts_with('-') && name.ends_with(ending);
  }
};
constexpr NumberedNames kSafetensorsNames{"model", ".safetensors"};
constexpr NumberedNames kPytorchNames{"pytorch_model", ".bin"};

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

Error no_weights(const fs::path& directory) {
  std::error_code cannot_list;
  const fs::directory_iterator entries(directory, cannot_list);
  if (cannot_list) return Error(ErrorKind::kBadInput, "no such directory").in(directory);
  std::vector<std::string> numbered;
  for (const auto& entry : entries) {
    const std::string file = entry.path().filename().string();
    if (file.ends_with(kSafetensorsNames.ending) ||
        (file.starts_with(kPytorchNames.stem) && file.ends_with(kPytorchNames.ending)))
      numbered.push_back(file);
  }
  std::sort(numbered.begin(), numbered.end());
  Error error(ErrorKind::kBadInput, "holds neither model.safetensors nor pytorch_model.bin, nor an index of either");
  error.in(directory);
  if (!numbered.empty())
    error.hint("there are other weight files (" + list_names(numbered) + "); is the index missing?");
  return error;
}

/// The tensors that the index puts into each file, against those that the file holds.
void prove_against_index(const Container& file, const std::vector<std::string>& listed, const fs::path& index_path) {
  std::unordered_map<std::string, bool> held;  // name → also listed
  for (const TensorEntry& tensor : file.tensors) held.emplace(tensor.name, false);
  const std::string file_name = file.path.filename().string();
  for (const std::string& name : listed) {
    const auto found = held.find(name);
    if (found == held.end())
      throw Error(ErrorKind::kBadInput, "the index puts it into " + printable(file_name) + ", which does not hold it")
          .in(index_path)
          .tensor(name);
    found->second = true;
  }
  for (const TensorEntry& tensor : file.tensors)
    if (!held[tensor.name])
      throw Error(ErrorKind::kBadInput,
                  "the file holds it, but " + index_path.filename().string() + " does not list it there")
          .in(file.path)
          .tensor(tensor.name)
          .hint("the index belongs to other files, or is older than they are");
}

std::vector<Container> read_indexed(const fs::path& directory, const fs::path& index_path, Format format,
                                    std::string* index_metadata) {
  const HfIndex index = read_hf_index(index_path);
  if (index_metadata != nullptr) *index_metadata = index.metadata;
  std::map<std::string, std::vector<std::string>> names_by_file;
  for (const auto& [name, file] : index.weight_map) names_by_file[file].push_back(name);
  std::vector<Container> files;
  std::uint64_t total_bytes = 0;
  for (const auto& [file, names] : names_by_file) {
    if (!path_exists(directory / file))
      throw Error(ErrorKind::kBadInput, "names the file " + printable(file) + " (" + std::to_string(names.size()) +
                                            " tensors), which is missing")
          .in(index_path)
          .hint("the download did not finish; fetch the model again");
    files.push_back(read_container(directory / file, format));
    prove_against_index(files.back(), names, index_path);
    for (const TensorEntry& tensor : files.back().tensors) total_bytes += tensor.size_bytes;
  }
  if (!files.empty() && index.total_size_bytes != 0 && index.total_size_bytes != total_bytes)
    files.front().warnings.push_back(fmt::format("{} says total_size {}, but the tensors have {} bytes",
                                                 index_path.filename().string(), index.total_size_bytes, total_bytes));
  return files;
}

}  // namespace

HfIndex read_hf_index(const fs::path& path) {
  const Json json = read_json_file(path, kMaxIndexBytes, JsonDialect::kPython);
  const JsonObject object(json, path);
  const Json& weight_map = object.object_at("weight_map");
  HfIndex index;
  if (const auto metadata = json.find("metadata"); metadata != json.end() && metadata->is_object()) {
    const auto total = metadata->find("total_size");
    const bool whole = total != metadata->end() && total->is_number_unsigned();
    if (whole) index.total_size_bytes = total->get<std::uint64_t>();
    if (metadata->size() > (whole ? 1 : 0)) index.metadata = json_text(*metadata);
  }
  for (const auto& [name, file] : weight_map.items()) {
    if (!file.is_string()) JsonObject(weight_map, path, "weight_map").fail(name, "a file name");
    const std::string file_name = file.get<std::string>();
    if (!is_plain_file_name(file_name))
      throw Error(ErrorKind::kBadInput,
                  "the index names the file \"" + printable(file_name) + "\", which is not a plain file name")
          .in(path)
          .tensor(name);
    index.weight_map.emplace_back(name, file_name);
  }
  if (index.weight_map.empty()) throw Error(ErrorKind::kBadInput, "the index lists no tensors").in(path);
  return index;
}

std::string hf_index_text(const HfIndex& index) {
  Json json;  // sorts its keys
  Json& metadata = json["metadata"];
  if (!index.metadata.empty()) metadata = parse_json(index.metadata, kKeptIndexMetadataFile, JsonDialect::kPython);
  // Some writers count with floats, and 16.0 is 16.
  if (!metadata.contains("total_size") || metadata["total_size"] != index.total_size_bytes)
    metadata["total_size"] = index.total_size_bytes;
  Json& weight_map = json["weight_map"];
  for (const auto& [name, file] : index.weight_map) weight_map[name] = file;
  return json_text(json, 2, true) + "\n";
}

std::string recounted_metadata(const std::string& metadata, std::uint64_t before, std::uint64_t after) {
  constexpr const char* kKey = "total_parameters";
  if (metadata.empty()) return {};
  Json json = parse_json(metadata, kKeptIndexMetadataFile, JsonDialect::kPython);
  if (!json.contains(kKey)) return metadata;
  if (json[kKey] == before)
    json[kKey] = after;
  else
    json.erase(kKey);
  return json_text(json);
}

std::string read_kept_index_metadata(const fs::path& directory) {
  const fs::path path = directory / kKeptIndexMetadataFile;
  if (!path_exists(path)) return {};
  const Json json = read_json_file(path, kMaxIndexBytes, JsonDialect::kPython);
  const JsonObject object(json, path);  // which proves that it is one
  return json_text(json);
}

std::string kept_index_metadata_text(const std::string& metadata) {
  return json_text(parse_json(metadata, kKeptIndexMetadataFile, JsonDialect::kPython), 2, true) + "\n";
}

std::string hf_file_name(Format format, std::size_t number, std::size_t count) {
  const bool pytorch = format == Format::kPytorch;
  if (count == 1) return pytorch ? kPytorchFile : kSafetensorsFile;
  const NumberedNames& names = pytorch ? kPytorchNames : kSafetensorsNames;
  return fmt::format("{}-{:05}-of-{:05}{}", names.stem, number, count, names.ending);
}

bool is_hf_weights_name(std::string_view name) {
  for (const char* whole : {kSafetensorsFile, kSafetensorsIndexFile, kPytorchFile, kPytorchIndexFile})
    if (name == whole) return true;
  return kSafetensorsNames.match(name) || kPytorchNames.match(name);
}

std::string hf_index_name(Format format) {
  return format == Format::kPytorch ? kPytorchIndexFile : kSafetensorsIndexFile;
}

std::optional<Format> hf_format(const fs::path& directory) {
  for (const Format format : {Format::kSafetensors, Format::kPytorch})
    for (const std::string& name : {hf_file_name(format, 1, 1), hf_index_name(format)})
      if (path_exists(directory / name) || fs::is_symlink(fs::symlink_status(directory / name))) return format;
  return std::nullopt;
}

std::vector<Container> read_hf_checkpoint(const fs::path& directory, std::string* index_metadata) {
  const auto format = hf_format(directory);
  if (!format) throw no_weights(directory);
  const fs::path index_path = directory / hf_index_name(*format);
  const fs::path single_path = directory / hf_file_name(*format, 1, 1);
  for (const fs::path& path : {index_path, single_path})
    if (!path_exists(path) && fs::is_symlink(fs::symlink_status(path)))
      throw Error(ErrorKind::kBadInput, "is a link to nowhere")
          .in(path)
          .hint("the download did not finish; fetch it again");
  const bool single = path_exists(single_path);
  std::vector<Container> files;
  if (path_exists(index_path)) {
    files = read_indexed(directory, index_path, *format, index_metadata);
    const bool listed =
        std::any_of(files.begin(), files.end(), [&](const Container& f) { return f.path == single_path; });
    if (single && !listed)
      throw Error(ErrorKind::kBadInput,
                  "holds " + single_path.filename().string() + " and an index that names other files")
          .in(directory)
          .hint("these are two checkpoints in one place; loaders disagree which counts, so move one away");
  } else {
    files.push_back(read_container(single_path, *format));
  }
  const bool both = *format == Format::kSafetensors &&
                    (path_exists(directory / kPytorchFile) || path_exists(directory / kPytorchIndexFile));
  if (both)
    files.front().warnings.push_back(
        "there are PyTorch weights beside it, which are left aside as transformers leaves them");
  return files;
}

}  // namespace reshard
