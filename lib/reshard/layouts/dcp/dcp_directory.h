// Lists directories of torch.distributed.checkpoint and reads their metadata.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/note.h"
#include "reshard/formats/dcp/dcp_metadata.h"
#include "reshard/io/files.h"

namespace reshard {

/// Whether `name` is `.metadata`, or the `__N.metadata` of a rank that saves independently (torch 2.9,
/// use_collectives=False).
bool is_dcp_metadata_name(std::string_view name);

/// Whether `directory` contains a metadata file.
bool holds_dcp_metadata(Files& files, const std::filesystem::path& directory);

/// Whether `name` is the name of a file of items (`.distcp`).
bool is_dcp_items_name(std::string_view name);

/// Whether `directory` contains files of items, which cannot be read without metadata.
bool holds_dcp_items(Files& files, const std::filesystem::path& directory);

/// The combined metadata of all ranks.
struct DcpDirectory {
  DcpMetadata all;
  std::filesystem::path where;                 // the metadata file, or the directory if there are several
  std::vector<std::filesystem::path> of_file;  // the metadata file that lists each of `all.files`
};

/// Reads `.metadata`, or else the metadata of each rank, which adds a note.
/// \throws Error kBadInput if there is no metadata, if the metadata of a rank other than the last ones is missing, or
///         if ranks contradict each other; as read_dcp_metadata.
DcpDirectory read_dcp_directory(Files& files, const std::filesystem::path& directory, DcpPaths paths, Notes& notes);

/// Returns the size of a file of items; std::nullopt if it does not exist.
/// \throws Error kIo.
std::optional<std::uint64_t> dcp_file_size(Files& files, const std::filesystem::path& path);

/// Notes files of `metadata` that do not exist, or that end before the last item that the metadata declares. Covers
/// files that are not read, such as the optimizer's; the readers of the other files report their own errors.
/// \param sizes_bytes  File sizes in the order of the metadata; std::nullopt if a file does not exist.
void note_incomplete_files(const std::vector<std::optional<std::uint64_t>>& sizes_bytes, const DcpMetadata& metadata,
                           Notes& notes);

}  // namespace reshard
