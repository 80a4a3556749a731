#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/io/open_store.h"
#include "reshard/plan/job/job.h"

namespace reshard {

/// Every file that a job writes, relative to its output directory, in the order in which they get their names.
std::vector<std::filesystem::path> output_files(const Job& job);

/// Whether `final`, whose name in the output directory is `relative`, is a copy of a file of the model that a run has
/// made which shares the directory.
bool is_left_alone(const Stores& stores, const Job& job, const std::filesystem::path& relative,
                   const std::filesystem::path& final);

/// Whether an output is, or is in, one of the folders that are replaced as a whole.
bool in_whole_folder(const Job& job, const std::filesystem::path& relative);

/// Lists the entries of a directory of old outputs that are not proven to be this program's by a name in `replaced`, a
/// record (unproven_entries), or the directory's manifest.
/// \param folder  a folder in the directory; empty for the directory itself.
/// \param replaced  relative to `folder`.
/// \throws Error kIo.
std::vector<std::string> unproven_outputs(Files& files, const std::filesystem::path& old_outputs,
                                          const std::filesystem::path& folder,
                                          const std::set<std::filesystem::path>& replaced);

/// Validates that replacing `folder`, one of the job's whole folders, deletes none of its unproven_outputs.
/// \param old_outputs  the directory that contains the folder and the manifest of earlier outputs.
/// \throws Error kBadInput naming the entries; kIo.
void validate_only_ours(Files& files, const Job& job, const std::filesystem::path& folder,
                        const std::filesystem::path& old_outputs);

/// Whether a directory of outputs contains, at any depth, only entries that the job replaces. Does not check the job's
/// whole folders (validate_only_ours).
/// \param except  an entry to ignore.
/// \throws Error kIo.
bool is_all_replaced(Files& files, const Job& job, const std::filesystem::path& outputs,
                     const std::filesystem::path& except = {});

/// Disk space for a job's outputs, as reported by the file system.
struct OutputSpace {
  std::uint64_t needed_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::filesystem::path file_system;  // an existing directory on the file system
};

/// Name of a staging directory next to the output directory, without its last six characters; the names of those in it
/// begin with kStagingPrefix. Names of the output directory that are too long are cut and end with their CRC.
std::string staging_prefix(const std::filesystem::path& output_directory);

/// Returns hidden directories in the output directory or next to it that have the name of a staging directory. Their
/// runs may have been killed or still be running. Skips links.
std::vector<std::filesystem::path> stale_stagings(Files& files, const Job& job);

/// Validates that the outputs may be written: no output is an input, nothing is replaced without `force`, and folders
/// that are replaced as a whole contain only files that this program writes. Writes nothing.
/// \throws Error kUsage, kBadInput or kIo.
void validate_output(const Stores& stores, const Job& job);

/// Returns the space that the job needs and the file system has.
/// \throws Error kIo.
OutputSpace output_space(Storage& storage, const Job& job);

/// \throws Error kNoSpace with both numbers if the outputs do not fit.
void validate_space(const OutputSpace& space);

}  // namespace reshard
