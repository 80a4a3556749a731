#include "reshard/formats/dcp/dcp_shards.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reshard/base/error.h"
#include "reshard/base/json.h"

namespace reshard {
namespace {

constexpr const char* kInfoKey = "DCP_SHARDING_INFO";
constexpr const char* kOffsetsKey = "saved_offsets";

}  // namespace

bool has_saved_offsets(const FileMetadata& metadata) {
  return std::any_of(metadata.begin(), metadata.end(), [](const auto& entry) { return entry.first == kInfoKey; });
}

std::vector<Dims> read_saved_offsets(const Container& file) {
  const auto found = std::find_if(file.metadata.begin(), file.metadata.end(),
                                  [](const auto& entry) { return entry.first == kInfoKey; });
  if (found == file.metadata.end())
    throw Error(ErrorKind::kBadInput, std::string("has no ") + kInfoKey + " in its metadata")
        .in(file.path)
        .hint("it was not written by torch's HuggingFaceStorageWriter, or another program has rewritten it");
  const Json json = parse_json(found->second, file.path, JsonDialect::kPython);
  const JsonObject info(json, file.path, kInfoKey);
  std::vector<Dims> offsets;
  offsets.reserve(file.tensors.size());
  for (const TensorEntry& tensor : file.tensors) {
    const auto bad = [&](const std::string& what) {
      return Error(ErrorKind::kBadInput, std::string(kInfoKey) + " " + what).in(file.path).tensor(tensor.name);
    };
    if (!info.has(tensor.name)) throw bad("does not record where it begins");
    const Json& entry = info.at(tensor.name);
    if (!entry.is_object() || !entry.contains(kOffsetsKey) || !entry[kOffsetsKey].is_array())
      throw bad("has no list of offsets for it");
    Dims begin;
    for (const Json& offset : entry[kOffsetsKey]) {
      if (!offset.is_number_unsigned()) throw bad("has " + brief(offset) + " instead of an offset");
      begin.push_back(offset.get<std::uint64_t>());
    }
    if (begin.size() != tensor.shape.size())
      throw bad("has " + std::to_string(begin.size()) + " offsets for its " + std::to_string(tensor.shape.size()) +
                " dims");
    offsets.push_back(std::move(begin));
  }
  return offsets;
}

}  // namespace reshard
