#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace reshard {

/// What a file says of itself, as safetensors' `__metadata__` has it: keys and values.
using FileMetadata = std::vector<std::pair<std::string, std::string>>;

/// The same in torch's archives: an entry of our own beside data.pkl, a JSON object of strings. torch.load looks its
/// entries up by name, and has never looked at others (caffe2/serialize/inline_container.cc).
inline constexpr const char* kArchiveMetadataEntry = "reshard.json";
/// More than a record of every tensor that a pickle may hold would need is not read.
inline constexpr std::uint64_t kMaxArchiveMetadataBytes = std::uint64_t{64} << 20;

/// The entry's content.
/// \throws Error kUnsupported for text that is not UTF-8.
std::string archive_metadata_text(const FileMetadata& metadata);

/// \throws Error kBadInput, naming `path` and `offset_bytes`, if it is no object of strings.
FileMetadata parse_archive_metadata(std::string_view text, const std::filesystem::path& path,
                                    std::uint64_t offset_bytes);

}  // namespace reshard
