#include "reshard/formats/common/container_keys.h"

#include "reshard/base/error.h"
#include "reshard/base/json.h"

namespace reshard {
namespace {

std::string json_of(const std::string& text) {
  try {
    return json_string(text);
  } catch (const Json::exception&) {
    throw Error(ErrorKind::kUnsupported, "metadata that is not UTF-8 cannot be written");
  }
}

}  // namespace

std::string archive_metadata_text(const FileMetadata& metadata) {
  // Written without a JSON document, which would be built and sorted for each of the many files of xser.
  std::string text = "{";
  for (const auto& [key, value] : metadata) {
    if (text.size() > 1) text += ',';
    text += json_of(key);
    text += ':';
    text += json_of(value);
  }
  text += '}';
  return text;
}

FileMetadata parse_archive_metadata(std::string_view text, const std::filesystem::path& path,
                                    std::uint64_t offset_bytes) {
  const auto bad = [&] {
    return Error(ErrorKind::kBadInput,
                 std::string("its zip entry ") + kArchiveMetadataEntry + " is not a JSON object of strings")
        .in(path)
        .at_byte(offset_bytes)
        .hint("the file is damaged or was changed; shard it again");
  };
  Json json;
  try {
    json = parse_json(text, path);
  } catch (const Error&) {  // its position is in this text, not in the file
    throw bad();
  }
  if (!json.is_object()) throw bad();
  FileMetadata metadata;
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) throw bad();
    metadata.emplace_back(key, value.get<std::string>());
  }
  return metadata;
}

}  // namespace reshard
