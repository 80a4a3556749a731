#pragma once

#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "reshard/io/files.h"

namespace reshard {

/// Returns the entries of `folder` that would be lost if a run replaced the folder as a whole, although nothing proves
/// that this program wrote them; relative to `folder`, sorted, an `optim/` first. A folder that contains no other
/// entries is returned by its own name. File names prove nothing, since trainers use the same ones. Proof is a rank
/// record in the file that agrees with its name; for a file of xser, the record of its rank file; for metadata of a
/// stage, the record of a rank from a pipeline with this stage; or `is_listed`. Links and an `optim/` that the run does
/// not write are always returned.
/// \param replaced   Files that the run writes in the folder, relative to it. They do not need proof.
/// \param is_listed  Tells whether a manifest proves a file, whose path is relative to `folder`.
/// \throws Error kIo if a file cannot be read.
std::vector<std::string> unproven_entries(Files& files, const std::filesystem::path& folder,
                                          const std::set<std::filesystem::path>& replaced,
                                          const std::function<bool(const std::filesystem::path& path)>& is_listed);

}  // namespace reshard
