#include "reshard/formats/safetensors/hf_index.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/numbered_name.h"
#include "reshard/base/strings.h"
#include "reshard/io/text_file.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{64}
                                         << 20;  // half a million tensors; parsing takes 20 times as much memory

constexpr std::uint64_t kMaxFiles = 1'000'000;  // per model; names with larger numbers are not numbered weight files

constexpr NumberedName kFileNumber("-{number:5}-of-{count:5}", kMaxFiles);

/// Pattern of names such as "model-00001-of-00003.safetensors".
struct NumberedNames {
  std::string_view stem;
  std::string_view ending;

  bool match(std::string_view name) const {
    return name.starts_with(stem) && name.substr(stem.size()).starts_with('-') && name.ends_with(ending);
  }
};
constexpr NumberedNames kSafetensorsNames{"model", ".safetensors"};
constexpr NumberedNames kPytorchNames{"pytorch_model", ".bin"};
constexpr NumberedNames kDiffusersNames[] = {{"diffusion_pytorch_model", ".safetensors"},
                                             {"diffusion_pytorch_model", ".bin"}};

constexpr NumberedNames kDiffusersLoraNames[] = {{kDiffusersLoraStem, ".safetensors"}, {kDiffusersLoraStem, ".bin"}};

constexpr const NumberedNames* kAllNames[] = {&kSafetensorsNames,  &kPytorchNames,          &kDiffusersNames[0],
                                              &kDiffusersNames[1], &kDiffusersLoraNames[0], &kDiffusersLoraNames[1]};

/// Returns the middle of a weight file's name: "-00001-of-00003", ".fp16-00001-of-00003".
std::optional<std::string_view> middle_of(std::string_view name, const NumberedNames& names) {
  if (name.size() < names.stem.size() + names.ending.size() || !name.starts_with(names.stem) ||
      !name.ends_with(names.ending))
    return std::nullopt;
  return name.substr(names.stem.size(), name.size() - names.stem.size() - names.ending.size());
}

/// Components of the middle of a name.
struct NameParts {
  std::string_view variant;                                       // empty if absent
  std::optional<std::pair<std::uint64_t, std::uint64_t>> number;  // number and count
};

bool is_variant(std::string_view word) {
  return !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  });
}

/// Returns std::nullopt if `middle` has another form.
std::optional<NameParts> parts_of(std::string_view middle) {
  NameParts parts;
  if (const std::size_t dot = middle.rfind('.'); dot != middle.npos) {
    const std::size_t end = dot == 0 ? std::min(middle.find('-'), middle.size()) : middle.size();
    parts.variant = middle.substr(dot + 1, end - dot - 1);
    if (!is_variant(parts.variant)) return std::nullopt;
    middle = dot == 0 ? middle.substr(end) : middle.substr(0, dot);
  }
  if (middle.empty()) return parts;
  const auto numbers = kFileNumber.parse(middle);
  if (!numbers) return std::nullopt;
  parts.number = {numbers->at("number"), numbers->at("count")};
  return parts;
}

std::string whole_name(const NumberedNames& names) {
  return std::string(names.stem) + std::string(names.ending);
}

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

/// Returns the file of each tensor in `names`, an object of the file `path`.
TensorFiles tensor_files(const JsonObject& names, const fs::path& path) {
  TensorFiles files;
  for (const auto& [name, file] : names.items()) {
    if (!file.is_string()) names.fail(name, "a file name");
    const auto& file_name = file.get_ref<const std::string&>();
    if (!is_plain_file_name(file_name))
      throw Error(ErrorKind::kBadInput,
                  "the index names the file \"" + printable(file_name) + "\", which is not a plain file name")
          .in(path)
          .tensor(name);
    files.emplace_back(name, file_name);
  }
  if (files.empty()) throw Error(ErrorKind::kBadInput, "the index lists no tensors").in(path);
  return files;
}

}  // namespace

HfIndex read_hf_index(Files& files, const fs::path& path) {
  const Json json = read_json_file(files, path, kMaxIndexBytes, JsonDialect::kPython);
  const JsonObject object(json, path);
  const JsonObject weight_map = object.object_at("weight_map");
  HfIndex index;
  if (const auto metadata = json.find("metadata"); metadata != json.end() && metadata->is_object()) {
    const auto total = metadata->find("total_size");
    const bool whole = total != metadata->end() && total->is_number_unsigned();
    if (whole) index.total_size_bytes = total->get<std::uint64_t>();
    if (metadata->size() > (whole ? 1 : 0)) index.metadata = json_text(*metadata);
  }
  index.weight_map = tensor_files(weight_map, path);
  return index;
}

TensorFiles read_split_index(Files& files, const fs::path& path) {
  const Json json = read_json_file(files, path, kMaxIndexBytes, JsonDialect::kPython);
  return tensor_files(JsonObject(json, path), path);
}

std::string hf_index_text(const HfIndex& index) {
  Json json;  // sorts its keys
  Json& metadata = json["metadata"];
  if (!index.metadata.empty()) metadata = parse_json(index.metadata, kKeptIndexMetadataFile, JsonDialect::kPython);
  // Some writers count with floats; 16.0 equals 16.
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

IndexMetadata read_kept_index_metadata(Files& files, const fs::path& directory) {
  const fs::path path = directory / kKeptIndexMetadataFile;
  if (!files.exists(path)) return {};
  const Json json = read_json_file(files, path, kMaxIndexBytes, JsonDialect::kPython);
  const JsonObject object(json, path);  // validates that it is an object
  return {json_text(json), path};
}

std::string kept_index_metadata_text(const std::string& metadata) {
  return json_text(parse_json(metadata, kKeptIndexMetadataFile, JsonDialect::kPython), 2, true) + "\n";
}

std::string hf_file_name(Format format, std::size_t number, std::size_t count, const std::string& stem) {
  NumberedNames names = format == Format::kPytorch ? kPytorchNames : kSafetensorsNames;
  if (!stem.empty()) names.stem = stem;
  if (count == 1) return whole_name(names);
  return fmt::format("{}{}{}", names.stem, kFileNumber.print({{"number", number}, {"count", count}}), names.ending);
}

std::optional<HfFileNumber> hf_file_number(std::string_view name) {
  for (const NumberedNames* names : kAllNames) {
    const auto middle = middle_of(name, *names);
    const auto parts = middle ? parts_of(*middle) : std::nullopt;
    if (!parts || !parts->number) continue;
    const std::string whole = hf_variant_name({whole_name(*names), std::string(parts->variant)});
    return HfFileNumber{whole, parts->number->first, parts->number->second};
  }
  return std::nullopt;
}

std::string_view indexed_name(std::string_view name) {
  constexpr std::string_view kIndex = ".index", kJson = ".json";
  const std::size_t index = name.rfind(kIndex);
  if (index == name.npos || !name.ends_with(kJson) || name.size() < index + kIndex.size() + kJson.size()) return {};
  const std::size_t begin = index + kIndex.size();
  const std::string_view variant = name.substr(begin, name.size() - kJson.size() - begin);
  const bool fits = variant.empty() || (variant.front() == '.' && is_variant(variant.substr(1)));
  return fits ? name.substr(0, index) : std::string_view();
}

std::optional<HfVariant> hf_variant(std::string_view name) {
  const std::string_view indexed = indexed_name(name);
  for (const NumberedNames* names : kAllNames) {
    const std::string whole = whole_name(*names);
    if (indexed == whole && name.size() > whole.size() + std::string_view(kIndexEnding).size()) {
      name.remove_prefix(whole.size() + std::string_view(".index.").size());
      return HfVariant{whole, std::string(name.substr(0, name.rfind('.')))};
    }
    const auto middle = middle_of(name, *names);
    const auto parts = middle ? parts_of(*middle) : std::nullopt;
    if (parts && !parts->variant.empty()) return HfVariant{whole, std::string(parts->variant)};
  }
  return std::nullopt;
}

std::string hf_variant_name(const HfVariant& variant) {
  if (variant.variant.empty()) return variant.whole;
  const std::size_t dot = variant.whole.rfind('.');
  return variant.whole.substr(0, dot + 1) + variant.variant + variant.whole.substr(dot);
}

std::string hf_variant_index_name(const HfVariant& variant) {
  return fmt::format("{}.index{}{}.json", variant.whole, variant.variant.empty() ? "" : ".", variant.variant);
}

bool is_hf_weights_name(std::string_view name) {
  for (const char* whole : {kSafetensorsFile, kSafetensorsIndexFile, kPytorchFile, kPytorchIndexFile})
    if (name == whole) return true;
  for (const std::string whole : {kDiffusersSafetensorsFile, kDiffusersPytorchFile})
    if (name == whole || name == whole + kIndexEnding) return true;
  for (const NumberedNames& names : kDiffusersNames)
    if (names.match(name)) return true;
  return kSafetensorsNames.match(name) || kPytorchNames.match(name);
}

std::string hf_index_name(Format format, const std::string& stem) {
  return hf_file_name(format, 1, 1, stem) + kIndexEnding;
}

std::string diffusers_stem(std::string_view file_name) {
  for (const NumberedNames* names : kAllNames) {
    if (names->stem == kSafetensorsNames.stem || names->stem == kPytorchNames.stem) continue;
    const auto middle = middle_of(file_name, *names);
    if (middle && parts_of(*middle)) return std::string(names->stem);
  }
  return {};
}

}  // namespace reshard
