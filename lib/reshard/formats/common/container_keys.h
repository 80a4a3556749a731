#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace reshard {

/// Metadata of a file as keys and values, like `__metadata__` of safetensors.
using FileMetadata = std::vector<std::pair<std::string, std::string>>;

/// Stores FileMetadata in torch's archives: an additional entry next to data.pkl, a JSON object of strings. torch.load
/// looks up its entries by name and has always ignored others (caffe2/serialize/inline_container.cc).
inline constexpr const char* kArchiveMetadataEntry = "reshard.json";
/// Larger entries are rejected. Enough for a record of every tensor that a pickle may contain.
inline constexpr std::uint64_t kMaxArchiveMetadataBytes = std::uint64_t{64} << 20;

/// Returns the content of the entry.
/// \throws Error kUnsupported for text that is not UTF-8.
std::string archive_metadata_text(const FileMetadata& metadata);

/// \throws Error kBadInput, naming `path` and `offset_bytes`, if `text` is not an object of strings.
FileMetadata parse_archive_metadata(std::string_view text, const std::filesystem::path& path,
                                    std::uint64_t offset_bytes);

}  // namespace reshard
