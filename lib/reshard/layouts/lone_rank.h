#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "reshard/base/error.h"
#include "reshard/io/files.h"

namespace reshard {

/// Whether `path` has the name of a rank's file or folder in some layout, or is the weights file in such a folder.
bool has_rank_name(Files& files, const std::filesystem::path& path);

/// Returns an error if `path` is one rank of several, as its name and the files next to it show: a number above 0, another
/// rank, or metadata. std::nullopt for other paths, and for a rank 0 without siblings, which may be the only rank. The
/// message begins with "is one rank", and the hint names the directory of all ranks.
std::optional<Error> explain_lone_rank(Files& files, const std::filesystem::path& path);

/// Returns a hint that names the directory of all ranks, for the path of one rank.
std::string hint_for_one_rank(Files& files, const std::filesystem::path& path);

}  // namespace reshard
