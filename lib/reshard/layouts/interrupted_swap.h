#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/io/files.h"
#include "reshard/layouts/core/checkpoint.h"

namespace reshard {

// A run that publishes into an existing directory renames its outputs one by one. Its staging directory there contains
// a file kSwapFile from before the first rename until after the last. While this file exists, readers refuse the
// outputs. The next run into the same directory finishes the renames of a killed run (engine/publish/earlier_runs.h).

/// Prefix of the name of a staging directory in the output directory; six characters follow.
inline constexpr std::string_view kStagingPrefix = ".reshard-";
inline constexpr const char* kSwapFile = ".swap";

/// Whether `path`, relative to the output directory, is no longer or deeper than the paths that runs write. Checks
/// paths from swap records, which anyone can write.
bool is_short_path(std::string_view path);

/// Returns the contents of kSwapFile.
/// \param entries  Files and whole folders in the order of their renames, relative to the output directory.
std::string swap_record(const std::vector<std::filesystem::path>& entries);

/// Returns the entries that the run with this staging directory is renaming; std::nullopt if it is not renaming any, or
/// if the record cannot be read or is invalid.
std::optional<std::vector<std::filesystem::path>> read_swap_record(Files& files, const std::filesystem::path& staging);

/// Validates that no output in `path`, a file or directory, is being swapped.
/// \throws Error kBadInput that names the staging directory and says how to finish the swap.
void validate_not_swapping(Files& files, const std::filesystem::path& path);

/// Returns the result of `read` unless outputs that it contains are being swapped.
/// \param read  Reads the checkpoint. If it fails and outputs in `path` are being swapped, the error reports the swap.
/// \throws as validate_not_swapping and `read`.
Checkpoint read_unless_swapping(Files& files, const std::filesystem::path& path,
                                const std::function<Checkpoint()>& read);

}  // namespace reshard
