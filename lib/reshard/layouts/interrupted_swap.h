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

// A run that gives outputs their names one by one, in a directory that exists, says so in its staging directory there: in
// a file kSwapFile, from before the first rename until after the last. While it is there readers refuse the outputs, and
// a run into the same directory finishes what a killed run had begun (engine/publish/earlier_runs.h).

/// Name of a staging directory in the output directory, without its last six characters.
inline constexpr std::string_view kStagingPrefix = ".reshard-";
inline constexpr const char* kSwapFile = ".swap";

/// Whether an output, relative to its directory, has a path that a run makes: none is longer or deeper. Records come from
/// files that anyone can write.
bool is_short_path(std::string_view path);

/// The text of kSwapFile.
/// \param entries  files and whole folders, relative to the output directory, in the order in which they get their names.
std::string swap_record(const std::vector<std::filesystem::path>& entries);

/// The entries that the run of a staging directory gives their names; std::nullopt if it does not do so, or the directory
/// is not to be read.
std::optional<std::vector<std::filesystem::path>> read_swap_record(Files& files, const std::filesystem::path& staging);

/// Validates that nothing in `path`, a file or directory, is being swapped.
/// \throws Error kBadInput that names the staging directory and says how to finish.
void validate_not_swapping(Files& files, const std::filesystem::path& path);

/// Reads a checkpoint, unless outputs that it consists of are being swapped.
/// \param read  reads it. If it fails, and outputs in `path` are being swapped, the error is about that.
/// \throws as validate_not_swapping; what `read` throws.
Checkpoint read_unless_swapping(Files& files, const std::filesystem::path& path,
                                const std::function<Checkpoint()>& read);

}  // namespace reshard
