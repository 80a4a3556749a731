#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "reshard/io/files.h"

namespace reshard {

/// A file of items, and the `.metadata` (or `__R.metadata`) that says what is in it.
struct DcpSavedFile {
  std::filesystem::path path;
  std::filesystem::path metadata;
  std::uint64_t size_bytes = 0;
  bool is_read = true;  // else it is the optimizer's, say, and only takes its time in a copy
};

/// Compares the times of files: torch rewrites files in place and metadata last, so that a save that was
/// cut off leaves files that are newer than their metadata, and torch itself would read a mixture of two steps. A copy
/// that does not keep times has such files, too, but writes the next file as soon as it has written metadata. So each
/// newer file may come as much later than the one before as its bytes take to copy; where each rank has metadata of its
/// own, so may each next file of all ranks. `notes` gets one for what may be either.
/// \throws Error kBadInput for a file that came later; kIo.
/// Does nothing where the storage has no times.
void validate_dcp_times(Files& files, std::span<const DcpSavedFile> saved, std::vector<std::string>& notes);

}  // namespace reshard
