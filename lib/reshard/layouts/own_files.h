#pragma once

#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "reshard/io/files.h"

namespace reshard {

/// Returns the entries of `folder` that a run would delete by replacing the whole folder, although nothing proves that
/// this program wrote them. Paths are relative to `folder` and sorted, with an `optim/` first. A folder that contains
/// only unproven entries is returned by its own name.
///
/// File names prove nothing, since trainers use the same names. A file is proven by a rank record that agrees with its
/// name, an xser file by the record of its rank file, a stage's metadata by a rank record of a pipeline that has this
/// stage, and any file by `is_listed`. Links are never proven, nor is an `optim/` that the run does not write.
/// \param replaced   Files that the run writes, relative to `folder`. They need no proof.
/// \param is_listed  Whether a manifest proves the file at this path, relative to `folder`.
/// \throws Error kIo if a file cannot be read.
std::vector<std::string> unproven_entries(Files& files, const std::filesystem::path& folder,
                                          const std::set<std::filesystem::path>& replaced,
                                          const std::function<bool(const std::filesystem::path& path)>& is_listed);

}  // namespace reshard
