#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "reshard/io/storage.h"
#include "reshard/plan/job/job.h"

namespace reshard {

/// A file in a staging directory (publish.h), from which it is known as one of this program. The lock file is another and
/// empty, so that nothing is lost with it.
inline constexpr std::string_view kMarkFile = ".mark";

/// The text of kMarkFile: that this program made the directory, and the paths of all outputs of the job.
std::string staging_mark(const Job& job);

/// Whether a directory has the mark of exactly this job.
bool has_mark_of(Storage& storage, const std::filesystem::path& root, const Job& job);

/// Why a directory is none that a run of this user has made, as the end of a sentence; empty if it is.
std::string why_not_ours(Storage& storage, const std::filesystem::path& root);

/// The same, and why there is more in it, at any depth, than runs have put there. A directory without a mark may contain
/// an empty lock file and nothing else: its run was killed before it had one.
std::string why_not_only_ours(Storage& storage, const std::filesystem::path& root);

}  // namespace reshard
