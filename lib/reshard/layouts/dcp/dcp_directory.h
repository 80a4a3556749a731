// Directories of torch.distributed.checkpoint: which files are in them, and what their metadata say together.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/formats/dcp/dcp_metadata.h"
#include "reshard/io/files.h"

namespace reshard {

/// Whether `name` is `.metadata`, or the `__N.metadata` that a rank writes that saves without the others (torch 2.9,
/// use_collectives=False).
bool is_dcp_metadata_name(std::string_view name);

/// Whether `directory` holds such a file.
bool holds_dcp_metadata(Files& files, const std::filesystem::path& directory);

/// Whether `name` is that of a file of items, as torch calls them.
bool is_dcp_items_name(std::string_view name);

/// Whether `directory` holds such files, which nothing can be read of without metadata.
bool holds_dcp_items(Files& files, const std::filesystem::path& directory);

/// What a directory's metadata say, those of all ranks together.
struct DcpDirectory {
  DcpMetadata all;
  std::filesystem::path where;                 // the one file, or the directory of several
  std::vector<std::filesystem::path> of_file;  // the metadata of each of `all.files`
};

/// Reads `.metadata`, or that of all ranks, which is noted.
/// \throws Error kBadInput if there is none, or that of a rank before others is missing, or they contradict each other;
///         as read_dcp_metadata does.
DcpDirectory read_dcp_directory(Files& files, const std::filesystem::path& directory, DcpPaths paths,
                                std::vector<std::string>& notes);

/// How large a file of items is; nothing if it is not there.
/// \throws Error kIo.
std::optional<std::uint64_t> dcp_file_size(Files& files, const std::filesystem::path& path);

/// Notes files of `metadata` that are not there, or end before the last item that is said to be in them. Of what is read
/// the reader tells more; of the rest, such as the optimizer beside the model, nobody else does.
/// \param sizes_bytes  of the files, in the order of the metadata; nothing for one that is not there.
void note_incomplete_files(const std::vector<std::optional<std::uint64_t>>& sizes_bytes, const DcpMetadata& metadata,
                           std::vector<std::string>& notes);

}  // namespace reshard
